"""Exact conversion of FP8 to fp16 by integer arithmetic alone: SM80 has no FP8 conversion instruction."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.exact import multiply
from cudnn_fe.core.cute.ptx_base import assemble, permute_bytes

__all__ = ["E4M3_SCALE", "fp8_floats", "widen_fp8"]

E4M3_SCALE = 2.0**8
"""`widen_fp8` gives E4M3 values divided by this."""


def widen_fp8(word: Any, name: str) -> list[Int32]:
    """Two words of fp16 pairs from one word of four FP8 elements, in order.

    E5M2 is the upper byte of an fp16. E4M3 gets its exponent bits in the low four of fp16's five, which divides it by
    2**8 (bias 15 against 7), subnormals included: all its values stay exact, and the caller scales the accumulators,
    which costs nothing beside a multiplication of every operand element. The NaN code (all ones) must not become
    480: adding one to the seven magnitude bits carries into bit 7 for that code only, and the carry lands on the
    exponent's fifth bit, which makes a NaN.

    Args:
        word: Four FP8 elements.
        name: ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    """
    if name == "float8_e5m2":
        return [permute_bytes(word, Int32(0), 0x1404), permute_bytes(word, Int32(0), 0x3424)]
    magnitude = word & Int32(0x7F7F7F7F)
    flagged = magnitude | ((magnitude + Int32(0x01010101)) & _signed(0x80808080))
    halves = []
    for selector in (0x1404, 0x3424):
        # Shifting the pair moves a bit across the halves only from the upper half's low byte, which is zero.
        value = (permute_bytes(flagged, Int32(0), selector) >> 1) & Int32(0x7FFF7FFF)
        sign = permute_bytes(word, Int32(0), selector) & _signed(0x80008000)
        halves.append(value | sign)
    return halves


def fp8_floats(words: list[Any], name: str, native: bool = False) -> list[Float32]:
    """The fp32 values of words of four FP8 elements, in order.

    Args:
        words: Four FP8 elements each.
        name: ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
        native: Whether the target converts from FP8.
    """
    if native:
        return [value for word in words for value in _converted(word, name)]
    values = []
    for word in (half for four in words for half in widen_fp8(four, name)):
        code = "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }"
        values += assemble(code, [Float32, Float32], [Int32(word)])
    return [multiply(value, E4M3_SCALE) for value in values] if name == "float8_e4m3fn" else values


def _converted(word: Any, name: str) -> list[Float32]:
    """Four FP8 elements as fp32, by the target's own conversion."""
    suffix = "e4m3x2" if name == "float8_e4m3fn" else "e5m2x2"
    code = (
        "{ .reg .b16 a, b, c, d; .reg .b32 lo, hi; mov.b32 {a, b}, $4; "
        f"cvt.rn.f16x2.{suffix} lo, a; cvt.rn.f16x2.{suffix} hi, b; mov.b32 {{a, b}}, lo; mov.b32 {{c, d}}, hi; "
        "cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; cvt.f32.f16 $2, c; cvt.f32.f16 $3, d; }"
    )
    return assemble(code, [Float32] * 4, [Int32(word)])


def _signed(bits: int) -> Int32:
    return Int32(bits - (1 << 32) if bits >> 31 else bits)
