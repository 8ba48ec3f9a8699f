"""The documented forms of operands, brought to one without moving data: arrays and specs alike.

Rows come as (M, X) or (M, X, 1), per-row vectors as (M,) or (M, 1, 1), weights as (L, N, K), (L, K, N) or (N, K, L).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError, FrameworkError, OptionError, ShapeError, StrideError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "ROWS",
    "VECTORS",
    "Buffers",
    "all_or_none",
    "as_rows",
    "as_vector",
    "as_weights",
    "in_form",
    "is_narrow",
    "permuted",
    "reformed",
    "require_unscaled",
    "required_vector",
    "weights_of",
]


ROWS = frozenset(
    {
        "a_tensor",
        "c_tensor",
        "d_tensor",
        "d_row_tensor",
        "d_col_tensor",
        "d_srelu_tensor",
        "activation_tensor",
        "rht_rowwise_tensor",
    }
)
VECTORS = frozenset({"prob_tensor", "dprob_tensor", "row_scale_tensor"})
SCALE_OPERANDS = frozenset({"sfa_tensor", "sfb_tensor"})
SCALE_RESULTS = frozenset(
    {"sfd_row_tensor", "sfd_col_tensor", "sfd_col_d_srelu_tensor", "sfd_tensor", "sfrht_rowwise_tensor"}
)


def reformed(name: str, x: Any) -> Any:
    """An operand or buffer, or its spec, in the form that the ops take; None stays None."""
    if x is None:
        return None
    if name in ROWS:
        return as_rows(x, name)
    if name in VECTORS:
        return as_vector(x, name)
    if name in SCALE_OPERANDS:
        return as_flat(x, name)
    if name in SCALE_RESULTS:
        return as_physical(x)
    return x


class Buffers:
    """A caller's buffers by result key, for `call` and for what the function returns."""

    def __init__(self, given: Mapping[str, Any] | None, *keys: str) -> None:
        """``keys`` names the op's outputs in order; an empty one has no buffer."""
        self._given = dict(given or {})
        unknown = sorted(self._given.keys() - set(keys))
        if unknown:
            raise OptionError(
                ", ".join(unknown), got="a buffer", wanted="the key of a result of this call", remedy="leave it out"
            )
        self.rows = all_or_none(*(reformed(key, self._given.get(key)) for key in keys))

    def results(self, **found: Any) -> TupleDict:
        """The results, the caller's own objects where buffers were given."""
        return TupleDict(**{key: self._given.get(key, value) for key, value in found.items()})


def require_unscaled(**given: tuple[Any, Any]) -> None:
    """Raises unless every option of the block-scaled modes, given with its default, is at that."""
    for name, (value, default) in given.items():
        if value is default or (isinstance(value, int | float | str) and value == default):
            continue
        raise OptionError(
            name,
            got=repr(value) if isinstance(value, int | float | str) else type(value).__name__,
            wanted=f"{default!r} without scale factors",
            remedy="leave it at its default",
        )


def as_flat(x: Any, name: str) -> Any:
    """Packed scales as their bytes in memory, in one dim: of the physical form, its atom view, or any compact shape."""
    shape, strides = layout_of(x, name)
    if len(shape) == 6 and strides != contiguous_strides(shape):
        x = as_physical(x)
        shape, strides = layout_of(x, name)
    size = 1
    for extent in shape:
        size *= extent
    compact = contiguous_strides(shape)
    if size and any(s != c for s, c, extent in zip(strides, compact, shape, strict=True) if extent > 1):
        raise StrideError(
            name, got=f"strides {strides} for {shape}", wanted="one compact buffer", remedy="copy the physical form"
        )
    if isinstance(x, TensorSpec):
        return TensorSpec((size,), (1,), x.dtype, x.device, x.alignment, x.name)
    return x.reshape(size)


def as_physical(x: Any) -> Any:
    """Packed scales (1, rows / 128, columns / 4, 32, 4, 4) of that form or of its atom view."""
    shape = tuple(x.shape)
    is_atom = len(shape) == 6 and (shape[0], shape[1], shape[3]) == (32, 4, 4)
    return permuted(x, (5, 2, 4, 0, 1, 3)) if is_atom else x


def all_or_none(*outs: Any) -> tuple[Any, ...] | None:
    """Buffers for `call`: None where there is none at all."""
    return None if all(out is None for out in outs) else outs


def permuted(x: Any, dims: tuple[int, ...]) -> Any:
    """``x`` with its dims in another order."""
    if hasattr(x, "permute"):  # a spec or a torch tensor
        return x.permute(dims)
    return x.transpose(dims)


def layout_of(x: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides; of a torch tensor by means that torch.compile can trace."""
    if hasattr(x, "storage_offset"):
        return tuple(x.shape), tuple(x.stride())
    spec = spec_of(x, name)
    return spec.shape, spec.strides


def is_narrow(x: Any, name: str) -> bool:
    """Whether the elements have a byte or less, as those of the block-scaled modes."""
    kind = getattr(x, "dtype", None)
    width = getattr(kind, "itemsize", None)
    return bool((spec_of(x, name).dtype.itemsize if width is None else width) <= 1)


def _first(x: Any, kept: int) -> Any:
    """``x`` without the dims from ``kept`` on, whose extents are 1."""
    if isinstance(x, TensorSpec):
        return TensorSpec(x.shape[:kept], x.strides[:kept], x.dtype, x.device, x.alignment, x.name)
    return x[(..., *(0,) * (x.ndim - kept))]


def as_rows(x: Any, name: str, *, absent: bool = False) -> Any:
    """(M, X) of (M, X) or (M, X, 1); ``absent`` says that None may stand for it."""
    if x is None and absent:
        return None
    shape, _ = layout_of(x, name)
    if len(shape) == 3 and shape[2] == 1:
        return _first(x, 2)
    if len(shape) == 2:
        return x
    raise ShapeError(name, got=str(shape), wanted="(M, X) or (M, X, 1)", remedy="reshape the operand")


def as_vector(x: Any, name: str) -> Any:
    """(M,) of (M,) or (M, 1, 1)."""
    if x is None:
        return None
    shape, _ = layout_of(x, name)
    if len(shape) == 3 and shape[1:] == (1, 1):
        return _first(x, 1)
    if len(shape) == 1:
        return x
    raise ShapeError(name, got=str(shape), wanted="(M,) or (M, 1, 1)", remedy="reshape the operand")


def required_vector(x: Any, name: str) -> Any:
    """`as_vector` of what must be given."""
    if x is None:
        raise OptionError(name, got="None", wanted="(M,) float32", remedy="pass ones for no gate")
    return as_vector(x, name)


def in_form(x: Any, rank: int) -> Any:
    """A result with unit dims added up to ``rank``, as the operand that decides had."""
    return x if x is None or x.ndim >= rank else x[(..., *(None,) * (rank - x.ndim))]


def as_weights(x: Any, b_major: Any, *, canonical_n: bool, kernel_n: bool = False) -> Any:
    """(L, N, K) of dense weights, whatever their form; see `weights_of`."""
    _require_major(b_major)
    shape, strides = layout_of(x, "b_tensor")
    if len(shape) != 3:
        raise ShapeError("b_tensor", got=str(shape), wanted="(L, N, K) or (N, K, L)", remedy="stack the weights")
    outer, middle, inner = strides
    canonical = _is_jax(x) or 0 in shape or (inner == 1 and middle != 1 and outer != 1)
    if b_major == "n" and not (canonical and canonical_n):
        raise OptionError(
            "b_major",
            got='"n"',
            wanted='"k"' + (", or contiguous (L, K, N) weights" if canonical_n else ""),
            remedy="pass contiguous (L, N, K) weights",
        )
    if canonical:
        return permuted(x, (0, 2, 1)) if b_major == "n" else x
    n, k, _ = shape
    allowed = [(k, 1, n * k), (1, n, n * k)][: 2 if kernel_n else 1]
    if not any(
        all(s == e for s, e, extent in zip(strides, wanted, shape, strict=True) if extent > 1) for wanted in allowed
    ):
        raise StrideError(
            "b_tensor",
            got=f"strides {strides} for shape {shape}",
            wanted=f"{' or '.join(map(str, allowed))} for (N, K, L), or contiguous (L, N, K)",
            remedy="allocate (L, N, K), and pass it as it is or permuted to (N, K, L)",
        )
    return permuted(x, (2, 0, 1))


def _is_jax(x: Any) -> bool:
    if hasattr(x, "storage_offset"):
        return False
    try:
        return framework_of(x) == "jax"
    except FrameworkError:
        return False


def weights_of(
    a: Any,
    b_tensor: Any,
    b_ptrs: Any,
    n: Any,
    b_dtype: Any,
    b_major: Any,
    *,
    canonical_n: bool,
    kernel_n: bool = False,
) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    """The weights' operand, and the options that belong to it: (L, N, K), or the addresses of the experts' matrices.

    Args:
        a: The rows; weights have their dtype.
        b_tensor: Dense weights, or None.
        b_ptrs: Addresses, or None.
        n: N of the latter.
        b_dtype: Their dtype.
        b_major: ``"k"`` or ``"n"``.
        canonical_n: Whether dense (L, K, N) is served.
        kernel_n: Whether dense (N, K, L) with N contiguous is.
    """
    if (b_tensor is None) == (b_ptrs is None):
        raise OptionError(
            "b_tensor, b_ptrs",
            got="neither" if b_tensor is None else "both",
            wanted="one of the two",
            remedy="pass dense weights as b_tensor, or addresses as b_ptrs",
        )
    if b_tensor is not None:
        if n is not None or b_dtype is not None:
            raise OptionError("n, b_dtype", got="a value", wanted="None with b_tensor", remedy="leave them out")
        return as_weights(b_tensor, b_major, canonical_n=canonical_n, kernel_n=kernel_n), _weight_options(0, False)
    if not isinstance(n, int) or n <= 0 or b_dtype is None:
        raise OptionError(
            "n, b_dtype", got=f"{n!r}, {b_dtype!r}", wanted="N > 0 and a dtype with b_ptrs", remedy="pass both"
        )
    rows, kind = dtype(a.dtype, operand="a_tensor"), dtype(b_dtype, operand="b_dtype")
    if kind != rows and not {kind.name, rows.name} <= {"uint8", "float4_e2m1fn"}:
        raise DTypeError("b_dtype", got=str(kind), wanted=f"{rows}, the dtype of a_tensor", remedy="cast one of them")
    _require_major(b_major)
    if b_major == "n" and rows.name in ("uint8", "float4_e2m1fn"):
        raise OptionError("b_major", got='"n"', wanted='"k" for FP4 pairs, which lie along K', remedy="pack along K")
    return b_ptrs, _weight_options(n, b_major == "n")


def _weight_options(n: int, n_major: bool) -> tuple[tuple[str, Any], ...]:
    return ("n", n), ("n_major", n_major)


def _require_major(b_major: Any) -> None:
    if b_major not in ("k", "n"):
        raise OptionError("b_major", got=repr(b_major), wanted='"k" or "n"', remedy="name the contiguous dim")
