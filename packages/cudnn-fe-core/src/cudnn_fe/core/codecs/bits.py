"""float32 bit patterns as int32 arrays, in the argument's own framework.

Everything here and in the codecs is integer arithmetic. Floating-point instructions flush subnormals under XLA's and
torch's fast settings, and framework casts round differently from version to version; integers do neither. int32 rather
than uint32, because torch has no shifts for the latter.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import array_api_compat

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, FrameworkError

__all__ = [
    "INF_BITS",
    "NAN_BITS",
    "Array",
    "Namespace",
    "at_least",
    "at_most",
    "dtype_of",
    "float32_bits",
    "float32_from_bits",
    "namespace_of",
    "small_integer_bits",
]

Array: TypeAlias = Any
"""An array of NumPy, torch or JAX (a tracer included)."""
Namespace: TypeAlias = Any
"""The array-API namespace of one of them."""

INF_BITS = 0x7F800000
NAN_BITS = 0x7FC00000
_SIGN = -0x80000000


def namespace_of(x: Array, *, operand: str = "x") -> Namespace:
    """The array-API namespace of ``x``, without importing a framework that the caller has not.

    Raises:
        FrameworkError: ``x`` is no array.
    """
    try:
        return array_api_compat.array_namespace(x)
    except TypeError:
        raise FrameworkError(
            operand, got=type(x).__name__, wanted="a NumPy, torch or JAX array", remedy="convert it first"
        ) from None


def dtype_of(x: Array, *, operand: str = "x") -> DType:
    """The element type of ``x``.

    Raises:
        DTypeError: It has no mapping, or its bytes are in the other order.
    """
    if not getattr(x.dtype, "isnative", True):
        raise DTypeError(
            operand, got=repr(x.dtype), wanted="native byte order", remedy="use x.astype(x.dtype.newbyteorder('='))"
        )
    return dtype(x.dtype, operand=operand)


def float32_bits(xp: Namespace, x: Array, *, operand: str = "x") -> Array:
    """The bits of ``x`` as float32, in int32. float16 and bfloat16 widen exactly, subnormals and NaN included.

    Args:
        xp: The namespace of ``x``.
        x: A float32, float16 or bfloat16 array.
        operand: What an error calls it.

    Returns:
        int32, the shape of ``x``.

    Raises:
        DTypeError: Any other element type. float64 would round twice on its way through float32, so the caller must ask
            for that.
    """
    name = dtype_of(x, operand=operand).name
    if name == "float32":
        return x.view(xp.int32)
    if name == "bfloat16":
        return xp.astype(x.view(xp.int16), xp.int32) << 16
    if name == "float16":
        return _widen_float16(xp, xp.astype(x.view(xp.int16), xp.int32))
    raise DTypeError(
        operand, got=name, wanted="float32, float16 or bfloat16", remedy="cast to float32 explicitly (that rounds once)"
    )


def _widen_float16(xp: Namespace, half: Array) -> Array:
    magnitude = half & 0x7FFF
    normal = (magnitude << 13) + ((127 - 15) << 23)
    special = normal + ((127 - 15) << 23)
    # A subnormal is an integer below 1024 times 2**-24: exact, and normal in float32.
    subnormal = small_integer_bits(xp, magnitude, -24)
    bits = xp.where(magnitude < 0x400, subnormal, xp.where(magnitude < 0x7C00, normal, special))
    return xp.where(half < 0, bits | _SIGN, bits)


def small_integer_bits(xp: Namespace, integers: Array, exponent: int) -> Array:
    """float32 bits of ``integers * 2**exponent``, for integers in [0, 2**24) and results that are normal or 0."""
    return xp.where(integers == 0, 0, xp.astype(integers, xp.float32).view(xp.int32) + exponent * 2**23)


def at_most(xp: Namespace, x: Array, limit: int) -> Array:
    """The smaller of each element and ``limit``, without the type query that stops torch.compile in ``xp.minimum``."""
    return xp.where(x > limit, limit, x)


def at_least(xp: Namespace, x: Array, limit: int) -> Array:
    """The larger of each element and ``limit``; see `at_most`."""
    return xp.where(x < limit, limit, x)


def float32_from_bits(xp: Namespace, magnitude: Array, negative: Array) -> Array:
    """The float32 array whose sign and remaining 31 bits are given."""
    return xp.where(negative, magnitude | _SIGN, magnitude).view(xp.float32)
