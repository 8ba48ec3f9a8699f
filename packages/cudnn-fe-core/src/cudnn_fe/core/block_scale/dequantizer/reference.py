"""The definition of dequantisation as an op, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.block_scale.dequantize import dequantize
from cudnn_fe.core.block_scale.layouts import unswizzle_scales
from cudnn_fe.core.codecs import unpack_fp4

if TYPE_CHECKING:
    from cudnn_fe.core.block_scale.dequantizer.op import BlockDequantize

__all__ = ["block_dequantize"]


def block_dequantize(problem: BlockDequantize, xp: Any, codes: Any, scales: Any, factor: Any) -> tuple[Any]:
    """The numbers.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        codes: (L, R, C), FP4 in pairs.
        scales: Packed in either form, or plain.
        factor: One element, or None.
    """
    _, rows, columns = problem.extents
    axis = -2 if problem.columns else -1
    codes, scales = codes.view(xp.uint8), scales.view(xp.uint8)
    if problem.format.element.bits == 4:
        codes = unpack_fp4(codes, axis=axis)
    if problem.packed:
        across, along = (columns, rows) if problem.columns else (rows, columns)
        scales = unswizzle_scales(scales, across, -(-along // problem.format.block))
        scales = xp.permute_dims(scales, (0, 2, 1)) if problem.columns else scales
    return (dequantize(codes, scales, problem.format, axis=axis, factor=factor, dtype=problem.dtype.name),)
