"""The contract of RMSNorm + SiLU: operand rules, the three kinds of results, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, ShapeError, StrideError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import require_contiguous, require_dtype, require_same_device
from cudnn_fe.core.row_plan import RowPlan, access_bytes, row_plan
from cudnn_fe.core.targets import PORTABLE_TARGETS
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.norm_rope.limits import row_refusal

__all__ = ["BLOCK", "FORWARD", "OUTPUTS", "RmsNormSilu", "SiluSpec"]

BLOCK = 16  # channels of one FP4 scale
OUTPUTS = ("bfloat16", "float8_e4m3fn", "float4_e2m1fn")


@dataclass(frozen=True, slots=True)
class SiluSpec:
    """What the kernel is compiled for; the number of rows and their distance are met at run time.

    Attributes:
        columns: Channels of a row.
        out_dtype: One of `OUTPUTS`.
        width: Bytes of one access to x and the weight.
        x_rank: Dims of x.
        w_rank: Dims of the weight.
        plan: Threads and registers.
        arch: The compiler's target.
    """

    columns: int
    out_dtype: str
    width: int
    x_rank: int
    w_rank: int
    plan: RowPlan
    arch: str


@dataclass(frozen=True)
class RmsNormSilu(Problem):
    """One call: ``silu(w * x / rms(x))`` of every row, in one of three formats."""

    operands: ClassVar[tuple[str, ...]] = ("x", "weight")
    output_count: ClassVar[int] = 0

    x: TensorSpec
    weight: TensorSpec
    out_dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``out_dtype``."""
        x, weight = operands
        assert x is not None
        assert weight is not None
        if x.ndim < 2:
            raise ShapeError(x.name, got=str(x.shape), wanted="(T, C) or (T, C, 1, 1)", remedy="add a dim of rows")
        result = dtype(options["out_dtype"], operand="out_dtype")
        if result.name not in OUTPUTS:
            raise DTypeError("out_dtype", got=str(result), wanted=f"one of {', '.join(OUTPUTS)}", remedy="choose one")
        columns = prod(x.shape[1:])
        step = BLOCK if result.bits == 4 else 8
        if columns % step or not columns:
            raise ShapeError(x.name, got=f"C = {columns}", wanted=f"a multiple of {step}", remedy="pad the channels")
        if weight.size != columns:
            raise ShapeError(weight.name, got=str(weight.shape), wanted=f"{columns} elements", remedy="one per channel")
        for spec in (x, weight):
            require_dtype(spec, "bfloat16")
        require_contiguous(weight)
        inner = contiguous_strides(x.shape[1:])
        if x.size and any(s != w and n > 1 for s, w, n in zip(x.strides[1:], inner, x.shape[1:], strict=True)):
            raise StrideError(
                x.name,
                got=f"strides {x.strides}",
                wanted=f"{inner} inside a row: channels innermost",
                remedy="lay the channels out innermost; rows may be any distance apart",
            )
        require_same_device(x, weight)
        return cls(x, weight, result)

    @property
    def extents(self) -> tuple[int, int]:
        """(T, C)."""
        return self.x.shape[0], prod(self.x.shape[1:])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The rows, shaped as x; for FP4 bytes (T, C/2) and block scales (T, C/16)."""
        rows, columns = self.extents

        def compact(shape: tuple[int, ...], kind: DType, name: str) -> TensorSpec:
            return TensorSpec(shape, contiguous_strides(shape), kind, self.device, 16, name)

        if self.out_dtype.bits == 4:
            return (
                compact((rows, columns // 2), dtype("uint8"), "out"),
                compact((rows, columns // BLOCK), dtype("float8_e4m3fn"), "block_scale"),
            )
        return (compact(self.x.shape, self.out_dtype, "out"),)

    @property
    def degenerate(self) -> bool:
        """No rows."""
        return self.x.shape[0] == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: RmsNormSilu, where: Device) -> SiluSpec:
    width = access_bytes(
        TensorSpec(problem.extents, (problem.x.strides[0], 1), problem.x.dtype, alignment=problem.x.alignment)
    )
    width = min(width, access_bytes(problem.weight), problem.weight.alignment)
    run = 2 if problem.out_dtype.bits == 4 else 1  # a block's scale in one thread
    plan = row_plan(problem.extents[1], clusters=where.capability >= (9, 0), run=run)
    return SiluSpec(
        problem.extents[1], problem.out_dtype.name, width, problem.x.ndim, problem.weight.ndim, plan, where.arch
    )


FORWARD = Op(
    name="rmsnorm_silu_forward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:rms_silu",
    package="cudnn-fe-norm-rope",
    problem=RmsNormSilu,
    reference="cudnn_fe.norm_rope.rmsnorm_silu.reference:rmsnorm_silu",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.rmsnorm_silu.portable",
            refuse=row_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    ),
    summary="RMSNorm followed by SiLU, in bfloat16, FP8 E4M3, or FP4 E2M1 with a scale for every 16 channels.",
    formula=r"y = w\, x / \sqrt{\tfrac1C \sum_c x_c^2 + \epsilon}, \qquad z = y / (1 + e^{-y})",
    tensors=(
        TensorRule(
            "x", "(T, C) or (T, C, 1, 1)", "channels innermost, rows any distance apart", ("bfloat16",), "input"
        ),
        TensorRule("weight", "(C,)", "contiguous", ("bfloat16",), "RMSNorm weight; any shape with C elements"),
        TensorRule(
            "out",
            "as x; FP4: (T, C/2)",
            "compact",
            ("bfloat16", "float8_e4m3fn", "uint8"),
            "z; FP4 codes two a byte, the even column in the low half",
        ),
        TensorRule("block_scale", "(T, C/16)", "compact", ("float8_e4m3fn",), "FP4 alone: max |z| / 6 of 16 channels"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import rmsnorm_silu_forward

pixels = np.random.default_rng(0).normal(size=(4, 64)).astype(ml_dtypes.bfloat16)  # of a decoder block, channels last
gamma = np.ones(64, ml_dtypes.bfloat16)

z = rmsnorm_silu_forward(pixels, gamma, 1e-6)["out"]
codes, scale = rmsnorm_silu_forward(pixels, gamma, 1e-6, out_dtype="float4_e2m1fn")

assert z.shape == pixels.shape
assert codes.shape == (4, 32)
assert scale.shape == (4, 4)
""",
    source="RMSNorm: Zhang and Sennrich, arXiv:1910.07467. E4M3: OCP OFP8 v1.0; E2M1: OCP MX v1.0.",
    notes=(
        "Nothing is rounded between the normalisation and the activation.",
        "FP4 divides by the scale before that is itself rounded to E4M3, as cudnn-frontend 1.32 does.",
        "A value exactly between two FP4 codes takes the even one by definition, the larger magnitude in the kernel.",
        "With eps divided by C this is L2 normalisation times the square root of C.",
        "Deterministic: every sum is taken in a fixed order.",
    ),
    results=("out", "block_scale"),
    autocast=False,
    scalars=("eps",),
    jax_name="rmsnorm_silu_jax_forward",
)
