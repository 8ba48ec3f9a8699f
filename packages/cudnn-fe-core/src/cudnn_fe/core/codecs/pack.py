"""Two FP4 codes a byte: element 2i in the low four bits, element 2i + 1 in the high four."""

from __future__ import annotations

from cudnn_fe.core.codecs.bits import Array, dtype_of, namespace_of
from cudnn_fe.core.errors import DTypeError, ShapeError

__all__ = ["pack_fp4", "unpack_fp4"]


def pack_fp4(codes: Array, *, axis: int = -1) -> Array:
    """Packs neighbours along ``axis`` into bytes.

    Args:
        codes: uint8 FP4 codes, one an element, of even extent along ``axis``; the high four bits are ignored.
        axis: The axis that halves, the contiguous one in every packed operand.

    Returns:
        uint8 array with half the extent along ``axis``.

    Raises:
        DTypeError: ``codes`` is not uint8.
        ShapeError: The extent is odd, or there is no such axis.

    Example:
        >>> import numpy as np
        >>> pack_fp4(np.asarray([0x1, 0x2, 0x3, 0xF], np.uint8)).tolist()
        [33, 243]

    The order is that of OCP MX v1.0 implementations and of DLPack's two-lane FP4.
    """
    xp, axis = namespace_of(codes, operand="codes"), _checked(codes, axis, "codes")
    if codes.shape[axis] % 2:
        raise ShapeError("codes", got=f"extent {codes.shape[axis]}", wanted="an even extent", remedy="pad with code 0")
    before = (slice(None),) * axis
    low, high = codes[(*before, slice(0, None, 2))], codes[(*before, slice(1, None, 2))]
    return xp.astype((low & 0xF) | ((high & 0xF) << 4), xp.uint8)


def unpack_fp4(packed: Array, *, axis: int = -1) -> Array:
    """The inverse of `pack_fp4`.

    Args:
        packed: uint8 array of bytes with two codes each.
        axis: The axis that doubles.

    Returns:
        uint8 array of codes with twice the extent along ``axis``.

    Raises:
        DTypeError: ``packed`` is not uint8.
        ShapeError: There is no such axis.

    Example:
        >>> import numpy as np
        >>> unpack_fp4(np.asarray([0x21, 0xF3], np.uint8)).tolist()
        [1, 2, 3, 15]

    The order is that of OCP MX v1.0 implementations and of DLPack's two-lane FP4.
    """
    xp, axis = namespace_of(packed, operand="packed"), _checked(packed, axis, "packed")
    pairs = xp.stack([packed & 0xF, packed >> 4], axis=axis + 1)
    shape = tuple(packed.shape)
    return xp.reshape(pairs, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))


def _checked(x: Array, axis: int, operand: str) -> int:
    given = dtype_of(x, operand=operand).name
    if given != "uint8":
        raise DTypeError(operand, got=given, wanted="uint8", remedy="view the bytes as uint8, or encode first")
    rank: int = x.ndim
    if not -rank <= axis < rank:
        raise ShapeError(operand, got=f"{rank} axes", wanted=f"an axis {axis}", remedy="name an axis that exists")
    return axis % rank
