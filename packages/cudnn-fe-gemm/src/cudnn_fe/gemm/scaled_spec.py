"""What the first kernels of the block-scaled GEMMs are compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cudnn_fe.core.gemm_spec import GemmSpec, Major

__all__ = ["FinishSpec", "Kind", "OperandSpec", "ScaledSpec"]

Kind = Literal["amax", "swiglu", "srelu", "dsrelu", "proj_rope"]


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """A quantised operand, dequantised before the product; extents and strides are met at run time.

    Attributes:
        codes_dtype: Type of the codes' tensor.
        rank: Dims of it.
        transposed: Whether a matrix of two dims is stored (K, rows).
        major: ``"k"`` when K is the unit-stride dim, ``"mn"`` when the rows are.
        access: Elements that may be read at once.
        scales_dtype: Type of the scales' tensor, None for an operand that is not quantised.
        packed: Whether scales stand in 512-byte atoms.
    """

    codes_dtype: str
    rank: int
    transposed: bool
    major: Major
    access: int
    scales_dtype: str | None
    packed: bool


@dataclass(frozen=True, slots=True)
class FinishSpec:
    """What becomes of the product.

    Attributes:
        kind: The op.
        out_dtypes: Types of its outputs, in its order.
        out_ranks: Dims of them.
        out_major: Contiguous dim of the matrices among them, ``"n"`` or ``"m"``.
        quantised: Element format of a quantised result, else None.
        quotient: The float32 that a block's largest magnitude is multiplied by.
        inputs: Names of the op's operands that are there, beyond those of the product.
        input_dtypes: Their types.
        input_ranks: Their dims.
        access: Elements of a product's row that may be read, and stored, at once.
        result_access: Elements of the last matrix's row that may be stored at once.
        input_access: Elements of a matrix operand's row that may be read at once.
        arch: The compiler's target.
    """

    kind: Kind
    out_dtypes: tuple[str, ...]
    out_ranks: tuple[int, ...]
    out_major: Literal["n", "m"]
    quantised: str | None
    quotient: float
    inputs: tuple[str, ...]
    input_dtypes: tuple[str, ...]
    input_ranks: tuple[int, ...]
    access: int
    result_access: int
    input_access: int
    arch: str


@dataclass(frozen=True, slots=True)
class ScaledSpec:
    """Dequantise A and B to bfloat16, multiply, finish.

    Attributes:
        backend: Whose main loop multiplies, ``"sm90"`` or ``"portable"``.
        element: Element format.
        scale: Scale format, None for operands that are not quantised.
        block: Elements per scale.
        a: Operand A.
        b: Operand B.
        gemm: The product.
        finish: What becomes of it.
        arch: The compiler's target.
    """

    backend: str
    element: str
    scale: str | None
    block: int
    a: OperandSpec
    b: OperandSpec
    gemm: GemmSpec
    finish: FinishSpec
    arch: str
