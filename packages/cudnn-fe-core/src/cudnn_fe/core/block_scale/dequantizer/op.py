"""The contract of dequantisation as an op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.block_scale.dequantizer.spec import DequantizeSpec
from cudnn_fe.core.block_scale.formats import BlockFormat, block_format
from cudnn_fe.core.block_scale.specs import require_packed
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, ShapeError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.require import require_contiguous, require_dtype, require_rows, require_same_device, require_shape
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["DEQUANTIZE", "BlockDequantize", "dequantize_kernel"]

RESULTS = ("float32", "bfloat16", "float16")
_CODES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "uint8")
_SCALES = ("float8_e8m0fnu", "float8_e4m3fn", "uint8")
_SIDE = 8


@dataclass(frozen=True)
class BlockDequantize(Problem):
    """One call: codes (L, R, C) and scales to numbers."""

    operands: ClassVar[tuple[str, ...]] = ("codes", "scales", "factor")
    optional: ClassVar[frozenset[str]] = frozenset({"factor"})

    codes: TensorSpec
    scales: TensorSpec
    factor: TensorSpec | None
    format: BlockFormat
    columns: bool
    packed: bool
    dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.core.block_scale.block_scale_dequantize`, spelt out."""
        codes, scales, factor = operands
        assert codes is not None
        assert scales is not None
        format = block_format(options["element"], options["scale"], options["block"])
        codes.require_rank(3, "(L, R, C)")
        if format.element.bits == 4:
            require_dtype(codes, "float4_e2m1fn", "uint8")
        else:
            require_dtype(codes, format.element.name)
        require_dtype(scales, format.scale.name, "uint8")
        require_rows(codes)
        result = dtype(options["dtype"], operand="dtype")
        if result.name not in RESULTS:
            wanted = f"one of {', '.join(RESULTS)}"
            raise DTypeError("dtype", got=str(result), wanted=wanted, remedy="cast afterwards")
        problem = cls(codes, scales, factor, format, options["columns"], options["packed"], result)
        batch, rows, columns = problem.extents
        across, along = (columns, rows) if problem.columns else (rows, columns)
        count = -(-along // format.block)
        if problem.packed:
            require_packed(scales, across, count, batch)
        else:
            shape = (batch, count, across) if problem.columns else (batch, across, count)
            require_shape(scales, shape, f"one per {format.block}")
            require_contiguous(scales)
        if factor is not None:
            require_dtype(factor, "float32")
            if factor.size != 1:
                raise ShapeError(factor.name, got=str(factor.shape), wanted="one element", remedy="pass one factor")
        require_same_device(codes, scales, factor)
        return problem

    @property
    def extents(self) -> tuple[int, int, int]:
        """L, R, C, in elements."""
        batch, rows, columns = self.codes.shape
        if self.format.element.bits != 4:
            return batch, rows, columns
        return (batch, 2 * rows, columns) if self.columns else (batch, rows, 2 * columns)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """(L, R, C), contiguous."""
        shape = self.extents
        return (TensorSpec(shape, contiguous_strides(shape), self.dtype, self.device, 16, "out"),)

    @property
    def degenerate(self) -> bool:
        """Nothing to write."""
        return self.codes.size == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: Any, where: Device) -> DequantizeSpec:
    return dequantize_kernel(problem, where, columns=problem.columns, packed=problem.packed)


def dequantize_kernel(problem: Any, where: Device, *, columns: bool, packed: bool) -> DequantizeSpec:
    """The kernel's specialisation for a problem with codes, scales, a factor, a format and one output."""
    codes: TensorSpec = problem.codes
    (out,) = problem.outputs
    width = out.shape[-1]
    per_byte = 2 if problem.format.element.bits == 4 and not columns else 1
    most = min(access_bytes(codes) * per_byte, _SIDE)
    return DequantizeSpec(
        codes_dtype=codes.dtype.name,
        element=problem.format.element.name,
        scale=problem.format.scale.name,
        block=problem.format.block,
        columns=columns,
        packed=packed,
        scales_dtype=problem.scales.dtype.name,
        scales_rank=problem.scales.ndim,
        factor_rank=None if problem.factor is None else problem.factor.ndim,
        out_dtype=out.dtype.name,
        in_access=common_power_of_two(most, width),
        out_access=common_power_of_two(_SIDE, width),
        arch=where.arch,
    )


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.core.block_scale.dequantizer.portable",
        refuse=portable_refusal,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        verified=("H200",),
    ),
)

EXAMPLE = """\
import numpy as np
from cudnn_fe.core.block_scale import block_scale_dequantize, block_scale_quantize

x = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
out = block_scale_quantize(x, "nvfp4")
y = block_scale_dequantize(out["row_codes"], out["row_scales"], "nvfp4", dtype="bfloat16")
assert np.abs(y.astype(np.float32) - x).max() < 0.7
"""

DEQUANTIZE = Op(
    name="block_scale_dequantize",
    package="cudnn-fe-core",
    problem=BlockDequantize,
    reference="cudnn_fe.core.block_scale.dequantizer.reference:block_dequantize",
    kernels=KERNELS,
    summary="MXFP8, MXFP4 or NVFP4 codes with plain or packed scales to numbers.",
    formula=r"y = \operatorname{cvt}(c \cdot (s \cdot f))",
    tensors=(
        TensorRule("codes", "(R, C) or (L, R, C); FP4 pairs", "rows contiguous", _CODES, "codes"),
        TensorRule("scales", "packed, or plain", "contiguous", _SCALES, "scales, in either packed form or plain"),
        TensorRule("factor", "one element", "-", ("float32",), "1 / norm of the quantiser, or None"),
        TensorRule("out", "(R, C) or (L, R, C)", "contiguous", RESULTS, "the numbers"),
    ),
    example=EXAMPLE,
    source="OCP MX v1.0, section 5.",
    notes=(
        "Each product is rounded to float32, the last to the result's type. Every NVFP4 and MXFP4 value without a "
        "factor is exact in bfloat16, and so is every MXFP8 value whose scale byte is at least 3 (E4M3) or 10 (E5M2): "
        "below, elements reach into bfloat16's subnormals, which have fewer bits.",
        "FP4 codes are packed in pairs along the direction that they were quantised in.",
    ),
    results=("out",),
    autocast=False,
    jax_name="block_scale_dequantize",
    memory_cases="cudnn_fe.core.block_scale.torch_bench:dequantize",
)
