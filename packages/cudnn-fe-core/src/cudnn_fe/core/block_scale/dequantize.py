"""Codes and scales back to numbers."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.block_scale.arithmetic import multiply_bits
from cudnn_fe.core.block_scale.formats import BlockFormat
from cudnn_fe.core.block_scale.quantize import checked_axis, factor_bits
from cudnn_fe.core.codecs import decode, to_bfloat16, to_float16
from cudnn_fe.core.codecs.bits import Array, namespace_of
from cudnn_fe.core.errors import OptionError, ShapeError

__all__ = ["dequantize"]

_NARROW = {"float32": lambda x: x, "bfloat16": to_bfloat16, "float16": to_float16}


def dequantize(
    codes: Array, scales: Array, format: BlockFormat, *, axis: int = -1, factor: Any = None, dtype: str = "float32"
) -> Array:
    """The values ``code * (scale * factor)``, each product rounded to float32, then to ``dtype``.

    Without a factor float32 holds every value exactly but those beyond its largest, which become infinite: elements
    of 2 and more under E8M0 byte 254, and E5M2 elements under bytes a little smaller. A NaN scale makes its block NaN.

    Args:
        codes: uint8 array, one code an element, or an array of the framework's dtype of the element format.
        scales: Scale codes in plain layout, uint8 or of the framework's dtype: one per block along ``axis``.
        format: E.g. `MXFP8_E4M3`.
        axis: The axis that blocks lie along.
        factor: A number or a float32 array of one element, 1 / norm of the quantiser; None is 1.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.

    Returns:
        Array of that dtype and the shape of the codes, in their framework.

    Raises:
        DTypeError: Codes or scales of another type.
        FrameworkError: ``codes`` is no array.
        OptionError: Another ``dtype``.
        ShapeError: Scales that do not fit the codes.

    Example:
        >>> import numpy as np
        >>> from cudnn_fe.core.block_scale import MXFP4
        >>> codes, scales = np.full((1, 32), 0x9, np.uint8), np.full((1, 1), 129, np.uint8)
        >>> dequantize(codes, scales, MXFP4)[0, 0]
        np.float32(-2.0)

    Values as in OCP MX v1.0, section 5.
    """
    if dtype not in _NARROW:
        raise OptionError("dtype", got=repr(dtype), wanted=f"one of {', '.join(_NARROW)}", remedy="cast afterwards")
    xp = namespace_of(codes, operand="codes")
    values = decode(codes, format.element)
    axis = checked_axis(values, axis, "codes")
    extent = values.shape[axis]
    shape = [-(-n // format.block) if dim == axis else n for dim, n in enumerate(values.shape)]
    if list(scales.shape) != shape:
        raise ShapeError(
            "scales",
            got=str(tuple(scales.shape)),
            wanted=f"{tuple(shape)}: one per {format.block} along axis {axis} of {tuple(values.shape)}",
            remedy="unswizzle packed scales first",
        )
    by_block = decode(scales, format.scale).view(xp.int32)
    if factor is not None:
        by_block = multiply_bits(xp, by_block, factor_bits(xp, by_block, factor, "factor"))
    whole = xp.stack([by_block] * format.block, axis=axis + 1)
    whole = xp.reshape(whole, (*shape[:axis], shape[axis] * format.block, *shape[axis + 1 :]))
    whole = whole[(*(slice(None),) * axis, slice(0, extent))]
    return _NARROW[dtype](multiply_bits(xp, values.view(xp.int32), whole).view(xp.float32))
