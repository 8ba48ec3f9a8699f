"""Two bfloat16 values in one 32-bit word: widening to fp32 and rounding back."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["narrow_pairs", "widen_pairs"]

_UPPER = -0x10000


def widen_pairs(words: list[Any]) -> list[Float32]:
    """The fp32 values of bfloat16 pairs, the low half of each word first. Exact."""
    values = []
    for word in words:
        for bits in (word << 16, word & _UPPER):
            values += assemble("mov.b32 $0, $1;", [Float32], [Int32(bits)])
    return values


def narrow_pairs(values: list[Any]) -> list[Int32]:
    """Words of bfloat16 pairs, each value rounded to nearest, ties to even; NaN becomes 0x7FFF."""
    words = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        words += assemble("cvt.rn.bf16x2.f32 $0, $1, $2;", [Int32], [Float32(high), Float32(low)])
    return words
