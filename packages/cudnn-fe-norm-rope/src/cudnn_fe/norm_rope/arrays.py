"""Pieces of the references, in array-API style: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import sigmoid
from cudnn_fe.core.codecs import to_bfloat16

__all__ = ["exact_product", "fused_multiply_add", "maximum_without_nan", "sigmoid", "to_bfloat16", "wide"]


def wide(xp: Any, x: Any) -> Any:
    """``x`` as float32, exactly for bfloat16."""
    return xp.astype(x, xp.float32)


def maximum_without_nan(xp: Any, x: Any, axis: Any) -> Any:
    """The largest ``|x|`` over ``axis``, NaN left out; 0 where there is nothing else."""
    return xp.max(xp.where(xp.isnan(x), xp.zeros_like(x), xp.abs(x)), axis=axis)


def exact_product(xp: Any, a: Any, b: Any) -> Any:
    """``a * b`` of float32 arrays, ``a`` with a bfloat16's 8 bits, rounded once whatever a compiler contracts.

    A bare product followed by a sum may become one fused operation. This one is itself a sum, of two exact products.
    """
    high, low = _split(xp, b)
    plain = a * b
    return xp.where(xp.isfinite(plain), a * high + a * low, plain)


def fused_multiply_add(xp: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of float32 arrays with one rounding; ``a`` has a bfloat16's 8 bits. Not for subnormal products."""
    high, low = _split(xp, b)
    exact = _sum_of_three(xp, a * high, a * low, c)
    plain = a * b + c
    # Infinities and NaN, and the sign of an exact zero, come from the plain operations.
    return xp.where(xp.isfinite(plain) & (exact != 0), exact, plain)


def _split(xp: Any, x: Any) -> tuple[Any, Any]:
    # 12 significant bits remain: a product with 8 bits is exact.
    high = (x.view(xp.int32) & -0x1000).view(xp.float32)
    return high, x - high


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_of_three(xp: Any, a: Any, b: Any, c: Any) -> Any:
    """The sum of three float32 arrays, rounded once: by rounding the lower parts to odd (Boldo and Melquiond, 2008)."""
    high, low = _two_sum(b, c)
    total, rest = _two_sum(a, high)
    error, tail = _two_sum(rest, low)
    # An inexact lower part gets an odd last place, so that no tie appears that the exact sum does not have.
    bits = error.view(xp.int32)
    toward = xp.where((tail > 0) == (error > 0), bits + 1, bits - 1)
    odd = xp.where((tail != 0) & ((bits & 1) == 0), toward, bits)
    return total + odd.view(xp.float32)
