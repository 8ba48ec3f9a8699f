"""Codes to float32, exactly."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.codecs.bits import (
    INF_BITS,
    NAN_BITS,
    Array,
    Namespace,
    dtype_of,
    float32_from_bits,
    namespace_of,
    small_integer_bits,
)
from cudnn_fe.core.codecs.formats import Format, format_of
from cudnn_fe.core.codecs.views import to_codes
from cudnn_fe.core.errors import DTypeError

__all__ = ["decode"]


def decode(codes: Array, format: Any = None) -> Array:
    """The value of every code: `decode_table` looked up, by arithmetic, so that no table travels to a device.

    NaN codes give the quiet NaN 0x7FC00000 whatever their sign.

    Args:
        codes: uint8 array of any shape with one code an element (of an FP4 byte the low four bits count), or an array
            of the framework's own dtype of the format (torch's FP4 pairs double the last extent).
        format: A `Format` or any spelling of its dtype; None takes it from ``codes``.

    Returns:
        float32 array in the framework of ``codes``.

    Raises:
        DTypeError: uint8 codes without a format, or a dtype that is neither uint8 nor the format's.
        FrameworkError: ``codes`` is no array.

    Example:
        >>> import numpy as np
        >>> decode(np.asarray([0x01, 0x38, 0xFE], np.uint8), "float8_e4m3fn").tolist()
        [0.001953125, 1.0, -448.0]

    The formats are those of OCP OFP8 v1.0 and OCP Microscaling (MX) v1.0.
    """
    xp = namespace_of(codes, operand="codes")
    given = dtype_of(codes, operand="codes").name
    row = format_of(given if format is None else format, operand="codes" if format is None else "format")
    if given not in ("uint8", row.name):
        raise DTypeError("codes", got=given, wanted=f"uint8 or {row.name}", remedy="view the bytes as uint8")
    if given != "uint8":
        codes = to_codes(codes)
    codes = xp.astype(codes, xp.int32) & (2**row.bits - 1)
    return _significand_values(xp, codes, row) if row.mantissa_bits else _power_of_two_values(xp, codes)


def _significand_values(xp: Namespace, codes: Array, row: Format) -> Array:
    sign_bit = 2 ** (row.bits - 1) if row.signed else 0
    magnitude = codes & (2**row.bits - 1 - sign_bit)
    normal = (magnitude << (23 - row.mantissa_bits)) + ((127 - row.bias) << 23)
    subnormal = small_integer_bits(xp, magnitude, 1 - row.bias - row.mantissa_bits)
    bits = xp.where(magnitude < 2**row.mantissa_bits, subnormal, normal)
    negative = (codes & sign_bit) != 0
    if row.has_inf and row.overflow_code is not None:
        bits = xp.where(magnitude == row.overflow_code, INF_BITS, bits)
    if row.nan_codes:
        is_nan = magnitude >= min(row.nan_codes)
        bits, negative = xp.where(is_nan, NAN_BITS, bits), negative & ~is_nan
    return float32_from_bits(xp, bits, negative)


def _power_of_two_values(xp: Namespace, codes: Array) -> Array:
    # 2**-127 is a float32 subnormal: as a bit pattern it survives backends that would flush it as a number.
    bits = xp.where(codes == 0, 0x400000, xp.where(codes == 0xFF, NAN_BITS, codes << 23))
    return bits.view(xp.float32)
