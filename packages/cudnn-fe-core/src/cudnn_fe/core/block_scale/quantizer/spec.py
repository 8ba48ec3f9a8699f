"""What the quantising kernel is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QuantizeSpec"]


@dataclass(frozen=True, slots=True)
class QuantizeSpec:
    """What the kernel is compiled for; extents and strides are met at run time.

    Attributes:
        x_dtype: Element type of the source.
        element: Element format.
        scale: Scale format.
        block: Elements per scale.
        row_recipe: That of blocks along rows, None without them.
        row_quotient: What it multiplies a block's largest magnitude by.
        column_recipe: Likewise along columns.
        column_quotient: Likewise.
        packed: Whether scales go into 512-byte atoms.
        codes_dtype: Type of the codes' tensors.
        scales_rank: Dims of the scales' tensors.
        norm_rank: Dims of the factor's tensor, None without one.
        amax: Whether the largest magnitude is wanted.
        x_access: Elements of the source that are read at once.
        out_access: Elements of a row that are written at once.
        arch: The compiler's target.
    """

    x_dtype: str
    element: str
    scale: str
    block: int
    row_recipe: str | None
    row_quotient: float
    column_recipe: str | None
    column_quotient: float
    packed: bool
    codes_dtype: str
    scales_rank: int
    norm_rank: int | None
    amax: bool
    x_access: int
    out_access: int
    arch: str
