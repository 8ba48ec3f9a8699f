"""The definition of quantisation as an op, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.block_scale.layouts import swizzle_scales
from cudnn_fe.core.block_scale.quantize import quantize
from cudnn_fe.core.codecs import from_codes, pack_fp4

if TYPE_CHECKING:
    from cudnn_fe.core.block_scale.quantizer.op import BlockQuantize

__all__ = ["block_quantize"]


def block_quantize(problem: BlockQuantize, xp: Any, x: Any, norm: Any) -> tuple[Any, ...]:
    """Codes and scales along rows, then along columns, then the largest magnitude.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: (L, R, C).
        norm: One element, or None.
    """
    results: list[Any] = []
    amax = None
    for axis, recipe in ((-1, problem.row_recipe), (-2, problem.column_recipe)):
        if recipe is None:
            continue
        codes, scales, amax = quantize(x, problem.format, axis=axis, recipe=recipe, norm=norm)
        if problem.packed:
            scales = swizzle_scales(scales if axis == -1 else xp.permute_dims(scales, (0, 2, 1)))
        if not problem.fp4:
            codes = from_codes(codes, problem.format.element)
        else:
            codes = pack_fp4(codes, axis=axis)
            codes = codes.view(xp.float4_e2m1fn_x2) if problem.native else codes
        results += [codes, from_codes(scales, problem.format.scale)]
    if problem.amax:
        results.append(xp.reshape(amax, (1,)))
    return tuple(results)
