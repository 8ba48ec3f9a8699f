"""fp32 values as words of narrower elements, each rounded to nearest, ties to even."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs
from cudnn_fe.core.cute.ptx_base import assemble
from cudnn_fe.core.cute.small_floats import as_bits, e2m1_word, fp8_words

__all__ = ["narrow_words"]


def narrow_words(name: str, values: list[Any], native: bool) -> list[Int32]:
    """Values in the element type called ``name``; FP8 and FP4 (also as uint8) saturate.

    Args:
        name: E.g. ``"bfloat16"``.
        values: Eight, or a multiple.
        native: Whether the target converts to FP8; see `has_fp8`.
    """
    if name == "float32":
        return [as_bits(value) for value in values]
    if name == "bfloat16":
        return narrow_pairs(values)
    if name in ("float8_e4m3fn", "float8_e5m2"):
        return fp8_words(name, values, native)
    if name in ("float4_e2m1fn", "uint8"):
        return [e2m1_word(values[start : start + 8]) for start in range(0, len(values), 8)]
    words = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        words += assemble("cvt.rn.f16x2.f32 $0, $1, $2;", [Int32], [Float32(high), Float32(low)])
    return words
