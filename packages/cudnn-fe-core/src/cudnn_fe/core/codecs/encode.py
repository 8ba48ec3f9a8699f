"""float32 to codes: one integer rounding for every format, so what is written here is what every device computes."""

from __future__ import annotations

from typing import Any, get_args

from cudnn_fe.core.codecs.bits import INF_BITS, Array, Namespace, at_least, at_most, float32_bits, namespace_of
from cudnn_fe.core.codecs.formats import Format, Rounding, format_of
from cudnn_fe.core.errors import OptionError

__all__ = ["encode", "encode_bits"]


def encode(x: Array, format: Any, *, saturate: bool = True, round: Rounding | None = None) -> Array:
    """Rounds every element of ``x`` once, to a code of ``format``.

    Saturating (the default), values beyond the largest finite one, infinities included, take the largest finite one
    of their sign, as ``cvt.satfinite`` does. Otherwise they become infinity where the format has it (E5M2) and NaN
    where not (E4M3, E8M0, UE5M3); a directed rounding toward zero keeps the largest finite value for finite inputs.
    Every NaN is the canonical one, without a sign: 0x7F in E4M3 and E5M2, 0xFF in E8M0 and UE5M3; E2M1, which has none,
    takes +6 (0x7). The sign of zero, and of what rounds to zero, stays. E8M0 and UE5M3 have no sign and encode ``|x|``;
    in E8M0 zero and everything up to 2**-127 is byte 0.

    Args:
        x: float32, float16 or bfloat16 array of any shape, from NumPy, torch or JAX.
        format: A `Format` or any spelling of its dtype.
        saturate: Whether overflow takes the largest finite value. E2M1 has no other way.
        round: ``"nearest"`` (ties to the even code), ``"up"`` (toward +infinity) or ``"down"``. None takes the
            format's own: up for E8M0, nearest for the rest.

    Returns:
        uint8 array of the shape of ``x`` in its framework, one code an element (FP4 codes in the low four bits).

    Raises:
        DTypeError: ``x`` has another element type (float64 is refused: cast it first), or there is no such format.
        FrameworkError: ``x`` is no array.
        OptionError: An unknown rounding, or no saturation in E2M1.

    Example:
        >>> import numpy as np
        >>> encode(np.asarray([0.3, 1e9, np.nan], np.float32), "float8_e4m3fn").tolist()
        [42, 126, 127]

    The formats are those of OCP OFP8 v1.0 and OCP Microscaling (MX) v1.0.
    """
    row = format_of(format)
    mode = row.rounding if round is None else round
    if mode not in get_args(Rounding):
        raise OptionError("round", got=repr(round), wanted="'nearest', 'up' or 'down'", remedy="name one of these")
    if not saturate and row.overflow_code is None:
        raise OptionError(
            "saturate", got="False", wanted=f"True for {row.name}", remedy="the format has no infinity or NaN"
        )
    xp = namespace_of(x)
    return xp.astype(encode_bits(xp, float32_bits(xp, x), row, saturate=saturate, mode=mode), xp.uint8)


def encode_bits(xp: Namespace, bits: Array, row: Format, *, saturate: bool, mode: Rounding) -> Array:
    """Codes, as int32, of the float32 values whose bits are given. Any format of at most 16 bits."""
    negative = bits < 0
    magnitude = bits & 0x7FFFFFFF
    is_nan = magnitude > INF_BITS
    magnitude = at_most(xp, magnitude, INF_BITS)
    if not row.signed:
        negative = xp.zeros_like(negative)
    away = negative if mode == "down" else ~negative
    if row.mantissa_bits:
        code = _round_significand(xp, magnitude, row, mode, away)
    else:
        code = _round_power_of_two(xp, magnitude, mode)
    if saturate or row.overflow_code is None:
        code = at_most(xp, code, row.max_code)
    else:
        code = at_most(xp, code, row.overflow_code)
        if mode != "nearest":
            code = xp.where(away | (magnitude == INF_BITS), code, at_most(xp, code, row.max_code))
        if row.overflow_code in row.nan_codes:
            is_nan = is_nan | (code == row.overflow_code)
    if row.signed:
        code = xp.where(negative, code | 2 ** (row.bits - 1), code)
    return xp.where(is_nan, row.nan_code, code)


def _round_significand(xp: Namespace, magnitude: Array, row: Format, mode: Rounding, away: Array) -> Array:
    # The code of a normal value is (exponent - lowest) << mantissa_bits plus the significand, leading one included; a
    # subnormal's is its significand shifted further. A carry out of the significand is the next exponent by itself.
    lowest = 128 - row.bias
    exponent = at_least(xp, magnitude >> 23, 1)
    significand = (magnitude & 0x7FFFFF) | xp.where(magnitude < 0x800000, 0, 0x800000)
    # Past 25 places everything is below half a unit, as it is at 25, and int32 has no room for more.
    shift = at_most(xp, at_least(xp, lowest - exponent, 0) + (23 - row.mantissa_bits), 25)
    one = xp.ones_like(shift)
    if mode == "nearest":
        increment = (one << (shift - 1)) - 1 + ((significand >> shift) & 1)
    else:
        increment = xp.where(away, (one << shift) - 1, 0)
    return ((significand + increment) >> shift) + (at_least(xp, exponent - lowest, 0) << row.mantissa_bits)


def _round_power_of_two(xp: Namespace, magnitude: Array, mode: Rounding) -> Array:
    # float32 shares E8M0's bias, so the exponent field is the code rounded down. Below 2**-126 the field is 0 and the
    # fraction counts from 0 instead of from 2**-127: rescale it, so that it too says how far up to the next code.
    code, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    fraction = xp.where(code == 0, at_least(xp, 2 * fraction - 0x800000, 0), fraction)
    if mode == "down":
        return code
    if mode == "up":
        return xp.where(fraction > 0, code + 1, code)
    return xp.where(fraction + (code & 1) > 0x400000, code + 1, code)
