"""Two bfloat16 values in one 32-bit word: widening to fp32 and rounding back."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.ptx_base import assemble, permute_bytes

__all__ = ["narrow_pairs", "widen_pairs", "widen_pairs_again"]

_UPPER = -0x10000


def widen_pairs(words: list[Any]) -> list[Float32]:
    """The fp32 values of bfloat16 pairs, the low half of each word first. Exact."""
    values = []
    for word in words:
        for bits in (word << 16, word & _UPPER):
            values += assemble("mov.b32 $0, $1;", [Float32], [Int32(bits)])
    return values


def widen_pairs_again(words: list[Any]) -> list[Float32]:
    """`widen_pairs` in other instructions: the assembler would keep, or spill, what it has computed before."""
    values = []
    for word in words:
        for bits in (permute_bytes(word, Int32(0), 0x1044), permute_bytes(word, Int32(0), 0x3244)):
            values += assemble("mov.b32 $0, $1;", [Float32], [bits])
    return values


def narrow_pairs(values: list[Any]) -> list[Int32]:
    """Words of bfloat16 pairs, each value rounded to nearest, ties to even; NaN becomes 0x7FFF."""
    words = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        words += assemble("cvt.rn.bf16x2.f32 $0, $1, $2;", [Int32], [Float32(high), Float32(low)])
    return words
