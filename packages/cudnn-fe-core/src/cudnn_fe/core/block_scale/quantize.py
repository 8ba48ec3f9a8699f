"""float32 to codes and scales, by the recipes that the kernels follow."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from cudnn_fe.core.block_scale.arithmetic import FLOAT32_MAX_BITS, multiply_bits, reciprocal_bits
from cudnn_fe.core.block_scale.formats import BlockFormat
from cudnn_fe.core.codecs import E5M2, E8M0, Format
from cudnn_fe.core.codecs.bits import INF_BITS, NAN_BITS, Array, Namespace, at_most, float32_bits, namespace_of
from cudnn_fe.core.codecs.encode import encode_bits
from cudnn_fe.core.errors import OptionError, ShapeError

__all__ = [
    "BlockScaled",
    "Recipe",
    "checked_axis",
    "factor_bits",
    "quantize",
    "quantize_rows_and_columns",
    "quotient_of",
    "scale_blocks",
]

Recipe: TypeAlias = Literal["power_of_two", "epilogue", "epilogue_columns", "converter"]
"""How a block's scale follows from its absolute maximum; see `quantize`."""

_EPILOGUE_LIMIT = {E5M2: 128.0}  # GEMM epilogues scale E5M2 blocks to 128, far below its largest value


class BlockScaled(NamedTuple):
    """A quantised array.

    Attributes:
        codes: uint8, one code an element, the shape of the source.
        scales: uint8 scale codes in plain layout: the source's shape with the quantised axis divided by the block.
        amax: float32 of no dims: the largest absolute value of the source, NaN if it has one, 0 if it is empty.
    """

    codes: Array
    scales: Array
    amax: Array


def quantize(
    x: Array,
    format: BlockFormat,
    *,
    axis: int = -1,
    recipe: Recipe = "epilogue",
    norm: Any = None,
) -> BlockScaled:
    """Quantises blocks along an axis.

    With ``a`` the block's largest ``|x|``, ``q`` the float32 nearest to 1 / limit, and every operation rounded to
    float32, the recipes are

    | recipe | scale | code | limit |
    |---|---|---|---|
    | ``"power_of_two"`` | ``a * q`` | ``x * (1 / scale)`` | the element's largest value |
    | ``"epilogue"`` | ``(a * q) * norm`` | ``x * min(norm * (1 / scale), FLT_MAX)`` | the same, 128 for E5M2 |
    | ``"epilogue_columns"`` | ``a * (q * norm)`` | the same with ``1 / scale`` bounded before | the same |
    | ``"converter"`` | ``a * q`` of ``y = x * norm`` | ``y * min(1 / scale, FLT_MAX)`` | the largest value |

    Scales round up in E8M0 and to nearest even in E4M3, codes to nearest even; both saturate.

    Args:
        x: float32, float16 or bfloat16 array.
        format: E.g. `MXFP8_E4M3`.
        axis: The axis that blocks lie along; -1 quantises rows, -2 columns. A last block may be shorter.
        recipe: One of the table; without ``norm`` they differ in E5M2's limit alone.
        norm: Positive finite factor: a number, or a float32 array of one element. None is 1.

    Returns:
        Codes, scales and the absolute maximum. A block of zeros has scale code 0 and keeps the signs of its zeros. A
        block with a NaN has a NaN scale and NaN codes (0x7 in FP4), except that ``"power_of_two"`` scales by the
        block's numbers, if it has any, and gives the NaN alone a NaN code. An infinity takes the largest scale and
        code.

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.
        OptionError: An unknown recipe, or one that the format or ``norm`` excludes.
        ShapeError: There is no such axis, or ``norm`` has more than one element.

    Example:
        >>> import numpy as np
        >>> from cudnn_fe.core.block_scale import NVFP4
        >>> codes, scales, amax = quantize(np.asarray([[6.0, -3.0, 0.4] + 13 * [0.0]], np.float32), NVFP4)
        >>> codes[0, :3].tolist(), scales.tolist(), float(amax)
        ([7, 13, 1], [[56]], 6.0)

    Element formats as in OCP MX v1.0; recipes as in cudnn-frontend 1.32, with exact reciprocals.
    """
    if recipe not in get_args(Recipe):
        raise OptionError("recipe", got=repr(recipe), wanted=f"one of {get_args(Recipe)}", remedy="name one of these")
    if recipe == "power_of_two" and (norm is not None or format.scale is not E8M0):
        raise OptionError(
            "recipe", got=repr(recipe), wanted="an E8M0 scale and no norm with it", remedy="use recipe='epilogue'"
        )
    xp, axis = namespace_of(x), checked_axis(x, axis)
    bits = xp.moveaxis(float32_bits(xp, x), axis, -1)
    extent = bits.shape[-1]
    blocks = _blocks(xp, bits, format.block)
    amax = _largest(xp, blocks)
    factor = factor_bits(xp, blocks, norm)
    scaled, scales = _scaled_blocks(xp, blocks, _limit(format, recipe), format.scale, recipe, factor)
    codes = encode_bits(xp, scaled, format.element, saturate=True, mode="nearest")
    flat = xp.reshape(codes, (*codes.shape[:-2], codes.shape[-2] * format.block))[..., :extent]
    return BlockScaled(
        xp.moveaxis(xp.astype(flat, xp.uint8), -1, axis),
        xp.moveaxis(xp.astype(scales, xp.uint8), -1, axis),
        xp.where(amax > INF_BITS, NAN_BITS, amax).view(xp.float32),
    )


def scale_blocks(
    x: Array, scale: Format, block: int, *, axis: int = -1, recipe: Recipe = "epilogue", norm: Any = None
) -> tuple[Array, Array]:
    """`quantize` for elements that need no narrow range: limit 1, and the scaled values are not rounded.

    Args:
        x: float32, float16 or bfloat16 array.
        scale: Format of the scales, E8M0 or E4M3.
        block: Elements per scale.
        axis: The axis that blocks lie along.
        recipe: ``"epilogue"`` or ``"epilogue_columns"`` of `quantize`.
        norm: Positive finite factor; see `quantize`.

    Returns:
        float32 values of the shape of ``x``, and uint8 scale codes in plain layout.

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.
        ShapeError: There is no such axis, or ``norm`` has more than one element.

    Example:
        >>> import numpy as np
        >>> from cudnn_fe.core.codecs import E8M0
        >>> values, scales = scale_blocks(np.asarray([[3.0, -1.0]], np.float32), E8M0, 32)
        >>> values.tolist(), scales.tolist()  # scale 4
        ([[0.75, -0.25]], [[129]])

    The recipe of cudnn-frontend 1.32's epilogues, with exact reciprocals.
    """
    xp, axis = namespace_of(x), checked_axis(x, axis)
    bits = xp.moveaxis(float32_bits(xp, x), axis, -1)
    blocks = _blocks(xp, bits, block)
    scaled, scales = _scaled_blocks(xp, blocks, 1.0, scale, recipe, factor_bits(xp, blocks, norm))
    flat = xp.reshape(scaled, (*scaled.shape[:-2], scaled.shape[-2] * block))[..., : bits.shape[-1]]
    values = xp.moveaxis(flat, -1, axis).view(xp.float32)
    return values, xp.moveaxis(xp.astype(scales, xp.uint8), -1, axis)


def quantize_rows_and_columns(
    x: Array, format: BlockFormat, *, recipe: Recipe = "epilogue", column_recipe: Recipe | None = None, norm: Any = None
) -> tuple[BlockScaled, BlockScaled]:
    """Quantises the last axis and, from the same unquantised values, the one before it.

    Args:
        x: float32, float16 or bfloat16 array of at least two dims.
        format: E.g. `MXFP8_E4M3`.
        recipe: See `quantize`.
        column_recipe: That of the columns; None is ``recipe``.
        norm: See `quantize`.

    Returns:
        The row-wise and the column-wise result.

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.
        OptionError: An unknown recipe, or one that the format or ``norm`` excludes.
        ShapeError: Fewer than two dims.

    Example:
        >>> import numpy as np
        >>> from cudnn_fe.core.block_scale import MXFP8_E4M3
        >>> rows, columns = quantize_rows_and_columns(np.ones((64, 96), np.float32), MXFP8_E4M3)
        >>> rows.scales.shape, columns.scales.shape
        ((64, 3), (2, 96))

    Recipes as in `quantize`.
    """
    return (
        quantize(x, format, axis=-1, recipe=recipe, norm=norm),
        quantize(x, format, axis=-2, recipe=column_recipe or recipe, norm=norm),
    )


def quotient_of(format: BlockFormat, recipe: Recipe) -> float:
    """What a recipe multiplies a block's largest magnitude by, to be rounded to float32."""
    return 1.0 / _limit(format, recipe)


def checked_axis(x: Array, axis: int, operand: str = "x") -> int:
    """The axis counted from 0; raises ShapeError if there is none."""
    rank: int = x.ndim
    if not -rank <= axis < rank:
        raise ShapeError(operand, got=f"{rank} axes", wanted=f"an axis {axis}", remedy="name an axis that exists")
    return axis % rank


def factor_bits(xp: Namespace, like: Array, factor: Any, operand: str = "norm") -> Array:
    """The float32 bits of a factor given as a number, an array of one element, or None for 1; of no dims."""
    first = xp.zeros((), dtype=xp.int32, device=_device(like))
    if factor is None:
        factor = 1.0
    if isinstance(factor, int | float):
        return first + int(np.asarray(factor, np.float32).view(np.int32))
    count = 1
    for extent in factor.shape:
        count *= extent
    if count != 1:
        raise ShapeError(operand, got=str(tuple(factor.shape)), wanted="one element", remedy="pass one factor")
    return xp.reshape(float32_bits(xp, factor, operand=operand), ())


def _device(x: Array) -> Any:
    return None if hasattr(x, "at") else getattr(x, "device", None)


def _largest(xp: Namespace, bits: Array) -> Array:
    magnitude = xp.reshape(bits & 0x7FFFFFFF, (-1,))
    if magnitude.shape[0] == 0:
        return xp.zeros((), dtype=xp.int32, device=_device(bits))
    return xp.max(magnitude)


def _blocks(xp: Namespace, bits: Array, block: int) -> Array:
    """(..., K) as (..., ceil(K / block), block), zeros at the end."""
    *outer, extent = bits.shape
    count = -(-extent // block)
    if count * block != extent:
        padding = xp.zeros((*outer, count * block - extent), dtype=xp.int32, device=_device(bits))
        bits = xp.concat((bits, padding), axis=-1)
    return xp.reshape(bits, (*outer, count, block))


def _limit(format: BlockFormat, recipe: Recipe) -> float:
    own = format.element.max
    return _EPILOGUE_LIMIT.get(format.element, own) if recipe.startswith("epilogue") else own


def _scaled_blocks(
    xp: Namespace, blocks: Array, limit: float, scale: Format, recipe: Recipe, factor: Array
) -> tuple[Array, Array]:
    """float32 bits (..., count, block) to be encoded, and scale codes (..., count), as int32."""
    if recipe == "converter":
        blocks, factor = multiply_bits(xp, blocks, factor), factor_bits(xp, blocks, None)
    quotient = factor_bits(xp, blocks, 1.0 / limit)
    size = blocks & 0x7FFFFFFF
    largest = xp.max(size, axis=-1)  # bit patterns order as numbers do, with NaN above infinity
    if recipe == "power_of_two":
        numbers = xp.max(xp.where(size > INF_BITS, -1, size), axis=-1)
        largest = xp.where(numbers < 0, largest, numbers)
    if recipe == "epilogue_columns":
        wanted = multiply_bits(xp, largest, multiply_bits(xp, quotient, factor))
    else:
        wanted = multiply_bits(xp, multiply_bits(xp, largest, quotient), factor)
    scales = encode_bits(xp, wanted, scale, saturate=True, mode=scale.rounding)
    inverse = reciprocal_bits(xp, xp.astype(scales, xp.uint8), scale)
    if recipe == "epilogue_columns":
        inverse = _bounded(xp, inverse)
    # Bounded, so that a zero times it is a zero.
    multiplier = _bounded(xp, multiply_bits(xp, factor, inverse))
    return multiply_bits(xp, blocks, multiplier[..., None]), scales


def _bounded(xp: Namespace, bits: Array) -> Array:
    """At most the largest finite float32; NaN stays."""
    return xp.where(bits > INF_BITS, bits, at_most(xp, bits, FLOAT32_MAX_BITS))
