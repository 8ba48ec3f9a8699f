"""float32 rounded to bfloat16, float16 and TF32 by our definition, for references that must be exact everywhere."""

from __future__ import annotations

import array_api_compat
import ml_dtypes
import numpy as np

from cudnn_fe.core.codecs.bits import INF_BITS, Array, at_most, float32_bits, float32_from_bits, namespace_of
from cudnn_fe.core.codecs.encode import encode_bits
from cudnn_fe.core.codecs.formats import Format

__all__ = ["round_to_tf32", "to_bfloat16", "to_float16"]

_FLOAT16 = Format(
    "float16", 16, 5, 10, 15, True, 65504.0, 2.0**-14, 2.0**-24,
    has_inf=True, nan_codes=(), max_code=0x7BFF, overflow_code=0x7C00, nan_code=0x7FFF,
)  # fmt: skip
_BFLOAT16 = Format(
    "bfloat16", 16, 8, 7, 127, True, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133,
    has_inf=True, nan_codes=(), max_code=0x7F7F, overflow_code=0x7F80, nan_code=0x7FFF,
)  # fmt: skip


def to_bfloat16(x: Array) -> Array:
    """Rounds to bfloat16: nearest, ties to even, overflow to infinity, subnormals kept, NaN to 0x7FFF (``cvt.rn``).

    Args:
        x: float32, float16 or bfloat16 array of any shape.

    Returns:
        bfloat16 array (ml_dtypes' under NumPy) of the same shape and framework.

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.

    Example:
        >>> import numpy as np
        >>> to_bfloat16(np.asarray([1.00390625, 1.01171875], np.float32)).astype(np.float32).tolist()
        [1.0, 1.015625]

    Rounding as in IEEE 754-2019, 4.3.1.
    """
    return _narrow(x, _BFLOAT16)


def to_float16(x: Array) -> Array:
    """Rounds to float16 (binary16): nearest, ties to even, overflow to infinity, subnormals kept, NaN to 0x7FFF.

    Args:
        x: float32, float16 or bfloat16 array of any shape.

    Returns:
        float16 array of the same shape and framework.

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.

    Example:
        >>> import numpy as np
        >>> to_float16(np.asarray([65519.0, 65520.0], np.float32)).tolist()
        [65504.0, inf]

    Rounding as in IEEE 754-2019, 4.3.1.
    """
    return _narrow(x, _FLOAT16)


def _narrow(x: Array, row: Format) -> Array:
    xp = namespace_of(x)
    codes = encode_bits(xp, float32_bits(xp, x), row, saturate=False, mode="nearest")
    # Into int16's range first: what an out-of-range conversion gives is the framework's choice.
    signed = xp.astype(xp.where(codes < 0x8000, codes, codes - 0x10000), xp.int16)
    if array_api_compat.is_torch_array(x):
        return signed.view(getattr(xp, row.name))
    return signed.view(np.float16 if row.name == "float16" else ml_dtypes.bfloat16)


def round_to_tf32(x: Array) -> Array:
    """Rounds to TF32 (10 mantissa bits, float32's exponent): nearest, ties away from zero (``cvt.rna.tf32.f32``).

    Tensor cores drop the 13 low bits of a float32 operand, so this is what makes them round. Overflow gives infinity,
    subnormals are kept, NaN becomes 0x7FFFFFFF.

    Args:
        x: float32, float16 or bfloat16 array of any shape.

    Returns:
        float32 array of the same shape and framework with the 13 low bits zero (except in NaN).

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.

    Example:
        >>> import numpy as np
        >>> round_to_tf32(np.asarray([1 + 2**-11, 1 + 2**-12], np.float32)).tolist()
        [1.0009765625, 1.0]

    As defined by the PTX ISA. The H200's instruction differs for NaN: it cuts the low bits off, which may leave
    infinity.
    """
    xp = namespace_of(x)
    bits = float32_bits(xp, x)
    magnitude = bits & 0x7FFFFFFF
    is_nan = magnitude > INF_BITS
    rounded = (at_most(xp, magnitude, INF_BITS) + 0x1000) & ~0x1FFF
    return float32_from_bits(xp, xp.where(is_nan, 0x7FFFFFFF, rounded), (bits < 0) & ~is_nan)
