"""The contracts of LayerNorm-Multiply-SiLU-Dropout, forward and backward: operand rules, outputs, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError, StrideError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import (
    require_aligned,
    require_contiguous,
    require_dtype,
    require_rows,
    require_same_device,
    require_shape,
)
from cudnn_fe.core.targets import PORTABLE_TARGETS
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.norm_rope.hstu_lmsd.kernels import partials, specialise
from cudnn_fe.norm_rope.limits import row_refusal

__all__ = ["BACKWARD", "FORWARD", "LmsdBackward", "LmsdForward"]

_MOST_COLUMNS = 1016
_FLAGS = ("apply_u_silu", "concat_u", "concat_x")


def _require_matrix(spec: TensorSpec, shape: tuple[int, int], layout: str) -> None:
    require_dtype(spec, "bfloat16")
    require_shape(spec, shape, layout)
    require_rows(spec)
    _require_stride(spec)
    require_aligned(spec)


def _require_stride(spec: TensorSpec) -> None:
    if spec.shape[0] > 1 and (spec.strides[0] < spec.shape[1] or spec.strides[0] % 8):
        raise StrideError(
            spec.name,
            got=f"rows {spec.strides[0]} elements apart",
            wanted=f"a multiple of 8, at least {spec.shape[1]}",
            remedy="pad the rows to 16 bytes",
        )


def _require_common(x: TensorSpec, u: TensorSpec, weight: TensorSpec, bias: TensorSpec) -> tuple[int, int]:
    x.require_rank(2, "(N, D)")
    rows, columns = x.shape
    if columns % 8 or not 8 <= columns <= _MOST_COLUMNS:
        raise ShapeError(
            x.name, got=f"D = {columns}", wanted=f"a multiple of 8 in 8..{_MOST_COLUMNS}", remedy="split the channels"
        )
    for spec in (x, u):
        _require_matrix(spec, (rows, columns), "(N, D)")
    for spec in (weight, bias):
        require_dtype(spec, "bfloat16")
        require_shape(spec, (columns,), "(D,)")
        require_contiguous(spec)
        require_aligned(spec)
    return rows, columns


def _flags(options: dict[str, Any]) -> dict[str, bool]:
    for name in _FLAGS:
        if not isinstance(options[name], bool):
            raise OptionError(name, got=repr(options[name]), wanted="True or False", remedy="pass a bool")
    return {name: options[name] for name in _FLAGS}


@dataclass(frozen=True)
class LmsdForward(Problem):
    """One call: ``dropout(act(u) * LayerNorm(x))``, and the segments that go before it."""

    operands: ClassVar[tuple[str, ...]] = ("x_tensor", "u_tensor", "weight_tensor", "bias_tensor", "seed_tensor")
    optional: ClassVar[frozenset[str]] = frozenset({"seed_tensor"})
    output_count: ClassVar[int] = 0

    x_tensor: TensorSpec
    u_tensor: TensorSpec
    weight_tensor: TensorSpec
    bias_tensor: TensorSpec
    seed_tensor: TensorSpec | None
    dropout: bool
    apply_u_silu: bool
    concat_u: bool
    concat_x: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``dropout`` and the three flags."""
        x, u, weight, bias, seed = operands
        assert x is not None
        assert u is not None
        assert weight is not None
        assert bias is not None
        _require_common(x, u, weight, bias)
        if seed is not None:
            require_dtype(seed, "int32")
            require_shape(seed, (2,), "(2,)")
            require_contiguous(seed)
        require_same_device(x, u, weight, bias, seed)
        return cls(x, u, weight, bias, seed, options["dropout"], **_flags(options))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """y (N, S D), mean and rstd (N,), and with dropout mask (N, D)."""
        (rows, columns), place = self.x_tensor.shape, self.device
        wide = (rows, columns * (1 + self.concat_u + self.concat_x))
        statistics = tuple(
            TensorSpec((rows,), (1,), dtype("float32"), place, 16, name) for name in ("mean_tensor", "rstd_tensor")
        )
        y = TensorSpec(wide, contiguous_strides(wide), dtype("bfloat16"), place, 16, "y_tensor")
        mask = TensorSpec((rows, columns), (columns, 1), dtype("int8"), place, 16, "mask_tensor")
        return (y, *statistics, mask) if self.dropout else (y, *statistics)

    @property
    def degenerate(self) -> bool:
        """No rows."""
        return self.x_tensor.shape[0] == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


@dataclass(frozen=True)
class LmsdBackward(Problem):
    """One call: the gradients of x, u, weight and bias."""

    operands: ClassVar[tuple[str, ...]] = (
        "dy_tensor", "x_tensor", "u_tensor", "weight_tensor", "bias_tensor", "mean_tensor", "rstd_tensor",
        "mask_tensor",
    )  # fmt: skip
    optional: ClassVar[frozenset[str]] = frozenset({"mask_tensor"})
    output_count: ClassVar[int] = 0

    dy_tensor: TensorSpec
    x_tensor: TensorSpec
    u_tensor: TensorSpec
    weight_tensor: TensorSpec
    bias_tensor: TensorSpec
    mean_tensor: TensorSpec
    rstd_tensor: TensorSpec
    mask_tensor: TensorSpec | None
    apply_u_silu: bool
    concat_u: bool
    concat_x: bool
    compute_dweight: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: the three flags and ``compute_dweight``."""
        mask = operands[-1]
        dy, x, u, weight, bias, mean, rstd = (spec for spec in operands[:-1] if spec is not None)
        flags = _flags(options)
        rows, columns = _require_common(x, u, weight, bias)
        _require_matrix(dy, (rows, columns * (1 + flags["concat_u"] + flags["concat_x"])), "(N, S D)")
        for spec in (mean, rstd):
            require_dtype(spec, "float32")
            require_shape(spec, (rows,), "(N,)")
            require_contiguous(spec)
        if mask is not None:
            require_dtype(mask, "int8")
            require_shape(mask, (rows, columns), "(N, D)")
            require_contiguous(mask)
            require_aligned(mask, nbytes=8)
        require_same_device(dy, x, u, weight, bias, mean, rstd, mask)
        return cls(dy, x, u, weight, bias, mean, rstd, mask, **flags, compute_dweight=bool(options["compute_dweight"]))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dx and du, as x, dweight where it is wanted, and dbias."""
        shape, kind = self.x_tensor.shape, dtype("bfloat16")

        def compact(extents: tuple[int, ...], name: str) -> TensorSpec:
            return TensorSpec(extents, contiguous_strides(extents), kind, self.device, 16, name)

        affine = ("dweight_tensor", "dbias_tensor") if self.compute_dweight else ("dbias_tensor",)
        rows = (compact(shape, "dx_tensor"), compact(shape, "du_tensor"))
        return (*rows, *(compact(shape[1:], name) for name in affine))

    def check_output_layout(self, position: int, given: TensorSpec) -> None:
        """Rows of dx and du may be padded to any multiple of 8 elements."""
        if position < 2:
            require_rows(given)
            _require_stride(given)
        else:
            super().check_output_layout(position, given)

    @property
    def degenerate(self) -> bool:
        """No rows."""
        return self.x_tensor.shape[0] == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


_KINDS = ("bfloat16",)
_ROWS = "channels contiguous, rows any multiple of 8 apart"
_X = TensorRule("x_tensor", "(N, D)", _ROWS, _KINDS, "LayerNorm's input; D a multiple of 8 up to 1016")
_U = TensorRule("u_tensor", "(N, D)", _ROWS, _KINDS, "gate")
_AFFINE = tuple(TensorRule(f"{n}_tensor", "(D,)", "contiguous", _KINDS, f"LayerNorm's {n}") for n in ("weight", "bias"))
_STATISTICS = tuple(
    TensorRule(f"{name}_tensor", "(N,)", "contiguous", ("float32",), meaning)
    for name, meaning in (("mean", "mean of each row of x"), ("rstd", "reciprocal standard deviation"))
)
_MASK = TensorRule(
    "mask_tensor",
    "(N, D)",
    "contiguous",
    ("int8",),
    "kept: bit 0 the product, bit 1 x, bit 2 the gate; None without dropout",
)
_SOURCE = "HSTU: Zhai et al., arXiv:2402.17152. Philox4x32-10: Salmon et al., Parallel Random Numbers, SC 2011."

FORWARD = Op(
    name="hstu_lmsd_forward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:lmsd_forward",
    package="cudnn-fe-norm-rope",
    problem=LmsdForward,
    reference="cudnn_fe.norm_rope.hstu_lmsd.reference:forward",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.hstu_lmsd.portable",
            refuse=row_refusal,
            specialise=partial(specialise, backward=False),
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    ),
    summary="Dropout of a gate times LayerNorm, with the dropped-out gate and input put in front on request.",
    formula=r"y = \left[\, \operatorname{drop}(a),\; \operatorname{drop}(x),\; "
    r"\operatorname{drop}(a \odot \operatorname{LayerNorm}(x)) \,\right], \qquad a = u\,\sigma(u)",
    tensors=(
        _X,
        _U,
        *_AFFINE,
        TensorRule(
            "seed_tensor", "(2,)", "contiguous", ("int32",), "JAX: low and high word of the seed, on the device"
        ),
        TensorRule("y_tensor", "(N, S D)", "compact", _KINDS, "S = 1 + concat_u + concat_x segments"),
        *_STATISTICS,
        _MASK,
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import hstu_lmsd_forward

rng = np.random.default_rng(0)
attended, gate = (rng.normal(size=(8, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
ones, zeros = np.ones(64, ml_dtypes.bfloat16), np.zeros(64, ml_dtypes.bfloat16)

y, mean, rstd, mask = hstu_lmsd_forward(attended, gate, ones, zeros, dropout_ratio=0.25, seed=7)

assert y.shape == (8, 3 * 64)  # gate, input, and their product, for the output projection of an HSTU layer
assert ((y[:, 64:128] != 0) == ((mask & 2) != 0)).all()
""",
    source=_SOURCE,
    notes=(
        "The mask depends on seed, row and column alone: Philox4x32-10 with counter (row, column // 4, plane, 0).",
        "The variance is the mean square less the squared mean, clamped at 0: it cancels where the mean is far larger "
        "than the deviation.",
        "The kernel's reciprocal standard deviation is within two units in the last place.",
        "Deterministic: every sum is taken in a fixed order.",
    ),
    results=("y_tensor", "mean_tensor", "rstd_tensor", "mask_tensor"),
    autocast=False,
    scalars=("eps", "scale", "threshold", "seed_low", "seed_high"),
    integers=frozenset({"threshold", "seed_low", "seed_high"}),
    legacy=("HSTULMSDFwd",),
    jax_name="hstu_lmsd_jax_forward",
    gradient="cudnn_fe.norm_rope.hstu_lmsd.gradient:GRADIENT",
)

BACKWARD = Op(
    name="hstu_lmsd_backward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:lmsd_backward",
    package="cudnn-fe-norm-rope",
    problem=LmsdBackward,
    reference="cudnn_fe.norm_rope.hstu_lmsd.reference:backward",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.hstu_lmsd.portable_backward",
            refuse=row_refusal,
            specialise=partial(specialise, backward=True),
            targets=PORTABLE_TARGETS,
            scratch=partials,
            verified=("H200",),
        ),
    ),
    summary="Gradients of LayerNorm-Multiply-SiLU-Dropout.",
    tensors=(
        TensorRule("dy_tensor", "(N, S D)", _ROWS, _KINDS, "gradient of y"),
        _X,
        _U,
        *_AFFINE,
        *_STATISTICS,
        _MASK,
        TensorRule("dx_tensor", "(N, D)", "compact, or the caller's padded rows", _KINDS, "gradient of x"),
        TensorRule("du_tensor", "(N, D)", "compact, or the caller's padded rows", _KINDS, "gradient of u"),
        TensorRule("dweight_tensor", "(D,)", "contiguous", _KINDS, "gradient of the weight, None if not wanted"),
        TensorRule("dbias_tensor", "(D,)", "contiguous", _KINDS, "gradient of the bias"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import hstu_lmsd_backward, hstu_lmsd_forward

rng = np.random.default_rng(0)
x, u = (rng.normal(size=(8, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
ones, zeros = np.ones(64, ml_dtypes.bfloat16), np.zeros(64, ml_dtypes.bfloat16)
how = dict(dropout_ratio=0.25, apply_u_silu=True, concat_u=True, concat_x=True)

y, mean, rstd, mask = hstu_lmsd_forward(x, u, ones, zeros, seed=7, **how)
dx, du, dweight, dbias = hstu_lmsd_backward(np.ones_like(y), x, u, ones, zeros, mean, rstd, mask, **how)

assert dx.shape == du.shape == x.shape
assert dweight.shape == dbias.shape == (64,)
""",
    source=_SOURCE,
    notes=(
        "The gradients of weight and bias are summed over blocks of rows, then over the blocks, in a fixed order, "
        "without atomics, and rounded once: bit-equal run to run on one kind of GPU.",
    ),
    results=("dx_tensor", "du_tensor", "dweight_tensor", "dbias_tensor"),
    autocast=False,
    scalars=("scale",),
    legacy=("HSTULMSDBwd",),
    jax_name="hstu_lmsd_jax_backward",
)
