"""The documented arguments of block-scaled functions: what they are, and what is refused before a call is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, OptionError
from cudnn_fe.core.hints import check_fixed, check_tiles
from cudnn_fe.core.require import require_dtype
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.grouped.forms import as_flat, weights_of
from cudnn_fe.grouped.operands import FLOATS

__all__ = [
    "EPILOGUES",
    "Rows",
    "Weights",
    "check_common",
    "check_counter",
    "check_result",
    "one_element",
    "require_given",
    "wants_amax",
]

EPILOGUES = (None, "none", "identity", "relu", "srelu")  # documented, and documented to have no effect


@dataclass(frozen=True)
class Rows:
    """A, its scales, and what belongs to experts and rows."""

    a: Any
    sfa: Any
    offsets: Any
    alpha: Any
    prob: Any = None
    norm_const: Any = None
    bias: Any = None
    row_scale: Any = None


@dataclass(frozen=True)
class Weights:
    """The experts' weights and their scales, dense or behind addresses."""

    b: Any = None
    sfb: Any = None
    b_ptrs: Any = None
    sfb_ptrs: Any = None
    n: int | None = None
    b_dtype: Any = None
    b_major: str = "k"

    def operands(self, a: Any) -> tuple[Any, Any, tuple[tuple[str, Any], ...]]:
        """The weights, their scales, and the options of weights behind addresses."""
        b, options = weights_of(
            a, self.b, self.b_ptrs, self.n, self.b_dtype, self.b_major, canonical_n=True, kernel_n=True
        )
        pairs = (("sfb_tensor", self.sfb), ("sfb_ptrs", self.sfb_ptrs))
        name, scales = pairs[self.b is None]
        unused, other = pairs[self.b is not None]
        if scales is None or other is not None:
            raise OptionError(
                f"{name}, {unused}",
                got="both" if scales is not None else f"no {name}",
                wanted=f"{name} with {'b_tensor' if self.b is not None else 'b_ptrs'}",
                remedy="pass the scale factors of the weights",
            )
        if self.b is None:
            return b, scales, options
        return packed_pairs(b), as_flat(scales, name), options


def check_common(
    acc_dtype: Any, cd_major: Any, m_aligned: Any, mma_tiler_mn: Any, cluster_shape_mn: Any, override: Any = None
) -> None:
    """Raises OptionError unless the options that choose nothing are documented."""
    check_fixed(acc_dtype, cd_major, m_aligned)
    check_tiles(mma_tiler_mn, cluster_shape_mn, (128, 256), "128 or 256", most=4)
    if override is not None:
        raise OptionError(
            "sf_fp8_dtype_override",
            got=repr(override),
            wanted="None: no scales here are unsigned E5M3",
            remedy="leave it out",
        )


def check_counter(counter: Any, use_dynamic_sched: bool, b_tensor: Any) -> None:
    """Raises unless a caller's scheduler counter is one; nothing here counts."""
    if counter is None:
        return
    if not use_dynamic_sched or b_tensor is None:
        raise OptionError(
            "scheduler_counter_tensor",
            got="a counter",
            wanted="None without dense weights and use_dynamic_sched",
            remedy="leave it out",
        )
    spec = spec_of(counter, "scheduler_counter_tensor")
    spec.require_rank(1, "(1,)")
    require_dtype(spec, "int32")


def check_result(given: Any, a: Any, *, fp8: tuple[str, ...], fp4: tuple[str, ...] = FLOATS) -> DType:
    """The dtype of a result; raises DTypeError unless it is one of those for A's format."""
    require_given(a_tensor=a)
    kind, rows = dtype(given or "bfloat16", operand="d_dtype"), dtype(a.dtype, operand="a_tensor")
    allowed = fp8 if rows.is_fp8 else fp4
    if kind.name not in allowed:
        raise DTypeError(
            "d_dtype", got=str(kind), wanted=f"{' or '.join(allowed)} with {rows} rows", remedy="choose a listed dtype"
        )
    return kind


def one_element(x: Any) -> Any:
    """A factor with its unit dims squeezed to one."""
    return x if x is None or x.ndim == 1 or any(extent != 1 for extent in x.shape) else x.reshape(1)


def require_given(**tensors: Any) -> None:
    """Raises OptionError for tensors whose documented default None is no tensor."""
    for name, tensor in tensors.items():
        if tensor is None:
            raise OptionError(name, got="None", wanted="a tensor", remedy="pass the documented operand")


def wants_amax(kind: DType) -> bool:
    """Whether a result of this type comes with its largest magnitudes."""
    return kind.name in ("bfloat16", "float16")
