"""Between codes and the frameworks' own low-precision dtypes, by bits: no cast of theirs is used."""

from __future__ import annotations

from typing import Any

import array_api_compat
import ml_dtypes

from cudnn_fe.core.codecs.bits import Array, dtype_of, namespace_of
from cudnn_fe.core.codecs.formats import E2M1, format_of
from cudnn_fe.core.codecs.pack import pack_fp4, unpack_fp4
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError

__all__ = ["from_codes", "packed_pairs", "to_codes"]


def to_codes(x: Array) -> Array:
    """The codes of an array of a framework's own low-precision dtype, one an element.

    For FP8 in NumPy and torch this is a view of the same memory. FP4 pairs of torch are unpacked along the last axis.

    Args:
        x: Array of a float8_e4m3fn, float8_e5m2, float8_e8m0fnu or FP4 dtype; uint8 passes through.

    Returns:
        uint8 array; the last extent doubled for torch's FP4.

    Raises:
        DTypeError: ``x`` has another element type.
        FrameworkError: ``x`` is no array.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> to_codes(np.asarray([1.0, -2.0], ml_dtypes.float8_e4m3fn)).tolist()
        [56, 192]

    Codes are those of OCP OFP8 v1.0 and OCP Microscaling (MX) v1.0.
    """
    xp = namespace_of(x)
    name = dtype_of(x).name
    if name == "uint8":
        return x
    row = format_of(name, operand="x")
    if row is not E2M1:
        return x.view(xp.uint8)
    if array_api_compat.is_torch_array(x):
        return unpack_fp4(x.view(xp.uint8))
    if array_api_compat.is_jax_array(x):
        return xp.astype(x.view(xp.uint4), xp.uint8)
    # ml_dtypes leaves the upper half of the byte to whoever wrote it.
    return x.view(xp.uint8) & 0xF


def from_codes(codes: Array, format: Any) -> Array:
    """An array of the framework's own dtype of ``format`` that holds the given codes.

    Args:
        codes: uint8 array, one code an element.
        format: A `Format` with a dtype in the frameworks, or any spelling of it.

    Returns:
        The array; for FP8 in NumPy and torch a view of the same memory, for torch's FP4 packed along the last axis.

    Raises:
        DTypeError: ``codes`` is not uint8, or no framework has the format.
        FrameworkError: ``codes`` is no array.
        ShapeError: An odd last extent for torch's FP4.

    Example:
        >>> import numpy as np
        >>> from_codes(np.asarray([56, 192], np.uint8), "float8_e4m3fn").astype(np.float32).tolist()
        [1.0, -2.0]

    Codes are those of OCP OFP8 v1.0 and OCP Microscaling (MX) v1.0.
    """
    xp = namespace_of(codes, operand="codes")
    row = format_of(format)
    given = dtype_of(codes, operand="codes").name
    if given != "uint8":
        raise DTypeError("codes", got=given, wanted="uint8", remedy="encode first")
    if not row.has_native_dtype:
        raise DTypeError("format", got=row.name, wanted="a format with a dtype", remedy="keep its codes in uint8")
    if array_api_compat.is_torch_array(codes):
        native = getattr(xp, dtype(row.name).torch)
        return (pack_fp4(codes) if row is E2M1 else codes).view(native)
    if row is E2M1 and array_api_compat.is_jax_array(codes):
        codes = xp.astype(codes, xp.uint4)
    return codes.view(getattr(ml_dtypes, row.name))


def packed_pairs(x: Array, *, axis: int = -1) -> Array:
    """FP4 arrays of NumPy and JAX, which hold one element a byte, as packed pairs; others, and None, as they are.

    Args:
        x: An array, or None.
        axis: The axis that halves.

    Returns:
        uint8 pairs, or ``x``.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> packed_pairs(np.asarray([1.0, -6.0], ml_dtypes.float4_e2m1fn)).tolist()
        [242]

    The order is that of `pack_fp4`.
    """
    if not hasattr(x, "dtype") or array_api_compat.is_torch_array(x) or dtype_of(x).name != E2M1.name:
        return x
    return pack_fp4(to_codes(x), axis=axis)
