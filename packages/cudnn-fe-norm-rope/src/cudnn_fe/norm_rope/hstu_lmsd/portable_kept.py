"""What dropout keeps, in registers: the mask's bits from random words, and zeros where a bit is not set."""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from cudnn_fe.core.cute.philox import philox4x32
from cudnn_fe.core.cute.ptx_base import assemble, permute_bytes

__all__ = ["kept_pairs", "mask_words"]

_SIGNS = (0x9988, 0xBBAA)  # the signs of bytes 0 and 1, and of 2 and 3, each over two bytes


def mask_words(place: tuple[Any, Any], planes: tuple[int, ...], threshold: Any, key: tuple[Any, Any]) -> list[Int32]:
    """The mask of a vector, a byte for each element: the bits of the planes whose word is at least the threshold.

    Args:
        place: Row, and vector in it.
        planes: Those that are drawn.
        threshold: Smallest word that is kept.
        key: Low and high word of the seed.
    """
    row, vector = place
    words = []
    for half in range(2):
        bits = Int32(0)
        for plane in planes:
            for at, word in enumerate(philox4x32((row, vector * 2 + half, Int32(plane), Int32(0)), key)):
                bits = _with_bit(bits, word, threshold, 1 << (8 * at + plane))
        words.append(bits)
    return words


def _with_bit(bits: Int32, word: Int32, threshold: Any, bit: int) -> Int32:
    """The bits, with one more if the word is at least the threshold."""
    code = f"{{ .reg .pred p; setp.ge.u32 p, $2, $3; mov.b32 $0, $1; @p or.b32 $0, $0, {bit}; }}"
    (result,) = assemble(code, [Int32], [bits, word, Int32(threshold)])
    return result


def kept_pairs(pairs: list[Int32], mask: list[Int32], plane: int) -> list[Int32]:
    """A vector's four words of bfloat16 pairs, zeros where the plane's bit is not set: 1.25 instructions an element."""
    results = []
    for half, bits in enumerate(mask):
        signs = bits << (7 - plane)
        for low, selector in enumerate(_SIGNS):
            results.append(pairs[2 * half + low] & permute_bytes(signs, signs, selector))
    return results
