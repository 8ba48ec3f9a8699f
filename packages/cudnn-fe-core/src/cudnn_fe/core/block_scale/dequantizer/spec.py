"""What the dequantising kernel is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DequantizeSpec"]


@dataclass(frozen=True, slots=True)
class DequantizeSpec:
    """What the kernel is compiled for; extents and strides are met at run time.

    Attributes:
        codes_dtype: Type of the codes' tensor.
        element: Element format.
        scale: Scale format.
        block: Elements per scale.
        columns: Whether blocks lie along columns.
        packed: Whether scales stand in 512-byte atoms.
        scales_dtype: Type of the scales' tensor.
        scales_rank: Dims of it.
        factor_rank: Dims of the factor's tensor, None without one.
        out_dtype: Element type of the result.
        in_access: Elements of a row that are read at once.
        out_access: Elements of a row that are written at once.
        arch: The compiler's target.
    """

    codes_dtype: str
    element: str
    scale: str
    block: int
    columns: bool
    packed: bool
    scales_dtype: str
    scales_rank: int
    factor_rank: int | None
    out_dtype: str
    in_access: int
    out_access: int
    arch: str
