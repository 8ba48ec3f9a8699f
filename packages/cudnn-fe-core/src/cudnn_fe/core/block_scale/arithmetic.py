"""IEEE products and reciprocals of float32 numbers, as integer arithmetic on their bits.

A compiler may flush subnormals, or fold two constant factors into one; on integers it does neither. Quantised bytes
depend on both: the smallest E8M0 scale is a float32 subnormal.
"""

from __future__ import annotations

from cudnn_fe.core.codecs import E8M0, Format, decode
from cudnn_fe.core.codecs.bits import INF_BITS, NAN_BITS, Array, Namespace, at_least, at_most

__all__ = ["FLOAT32_MAX_BITS", "multiply_bits", "reciprocal_bits"]

FLOAT32_MAX_BITS = 0x7F7FFFFF
_SIGN = -0x80000000
_HIDDEN = 0x800000


def multiply_bits(xp: Namespace, a: Array, b: Array) -> Array:
    """The bits of the product of two float32 arrays, rounded once, to nearest even, subnormals kept.

    Args:
        xp: The arrays' namespace.
        a: int32 array of float32 bits.
        b: The same; the shapes broadcast.

    Returns:
        int32 bits; every NaN is 0x7FC00000.
    """
    negative = (a < 0) ^ (b < 0)
    a, b = a & 0x7FFFFFFF, b & 0x7FFFFFFF
    is_nan = (a > INF_BITS) | (b > INF_BITS) | ((a == INF_BITS) & (b == 0)) | ((a == 0) & (b == INF_BITS))
    is_inf = (a == INF_BITS) | (b == INF_BITS)
    is_zero = (a == 0) | (b == 0)
    a_exponent, a_significand = _normalised(xp, a)
    b_exponent, b_significand = _normalised(xp, b)
    product = _leading_bits(xp, a_significand, b_significand)
    # The product of two numbers in [1, 2) has one or two bits before the point.
    carry = xp.astype(product >= 2**26, xp.int32)
    exponent = at_most(xp, a_exponent + b_exponent - 127 + carry, 255)
    shift = at_most(xp, 2 + carry + at_least(xp, 1 - exponent, 0), 28)  # at 28 places everything is below a half
    increment = (xp.ones_like(shift) << (shift - 1)) - 1 + ((product >> shift) & 1)
    bits = ((product + increment) >> shift) + ((at_least(xp, exponent, 1) - 1) << 23)
    bits = xp.where(is_inf, INF_BITS, xp.where(is_zero, 0, at_most(xp, bits, INF_BITS)))
    return xp.where(is_nan, NAN_BITS, xp.where(negative, bits | _SIGN, bits))


def _normalised(xp: Namespace, magnitude: Array) -> tuple[Array, Array]:
    """Exponent and 24-bit significand with its leading one; a zero's are those of some other number."""
    as_number = xp.astype(at_most(xp, magnitude, _HIDDEN), xp.float32).view(xp.int32)  # exact, and normal or 0
    subnormal = magnitude < _HIDDEN
    bits = xp.where(subnormal, as_number, magnitude)
    exponent = (bits >> 23) - 149 * xp.astype(subnormal, xp.int32)
    return exponent, (bits & (_HIDDEN - 1)) | _HIDDEN


def _leading_bits(xp: Namespace, a: Array, b: Array) -> Array:
    """The product of two 24-bit integers without its last 21 bits, the lowest bit kept saying whether any was set."""
    a_high, a_low, b_high, b_low = a >> 12, a & 0xFFF, b >> 12, b & 0xFFF
    middle = a_high * b_low + a_low * b_high
    low = a_low * b_low + ((middle & 0xFFF) << 12)
    high = a_high * b_high + (middle >> 12) + (low >> 24)
    rest = low & 0xFFFFFF
    return (high << 3) | (rest >> 21) | xp.astype((rest & 0x1FFFFF) != 0, xp.int32)


def reciprocal_bits(xp: Namespace, codes: Array, scale: Format) -> Array:
    """The bits of ``1 / decode(codes, scale)``, rounded to nearest; infinity for a scale of zero.

    Powers of two are exact at both ends too: byte 0 gives 2**127, byte 254 gives 2**-127.
    """
    if scale is E8M0:
        codes = xp.astype(codes, xp.int32)
        bits = xp.where(codes == 254, 0x400000, (254 - codes) << 23)
        return xp.where(codes == 255, NAN_BITS, bits)
    value = decode(codes, scale)
    bits = (1.0 / xp.where(value == 0, xp.ones_like(value), value)).view(xp.int32)
    bits = xp.where((bits & 0x7FFFFFFF) > INF_BITS, NAN_BITS, bits)
    return xp.where(value == 0, INF_BITS, bits)
