"""fp32 values rounded to E2M1, E4M3 and E5M2, to nearest with ties to even, in the base instruction set.

The same codes as `cudnn_fe.core.codecs`. Adding a constant whose unit in the last place is a step of the format rounds
to that step, in one instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32

from cudnn_fe.core.cute.exact import add, multiply
from cudnn_fe.core.cute.ptx_base import assemble, permute_bytes

__all__ = [
    "E2M1",
    "E2M1_UNIT",
    "E4M3",
    "E5M2",
    "Grid",
    "as_bits",
    "as_float",
    "clamped_magnitude",
    "e2m1_word",
    "fp8_words",
    "has_fp8",
]

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


def as_bits(value: Any) -> Int32:
    """The bits of an fp32 value."""
    (bits,) = assemble("mov.b32 $0, $1;", [Int32], [Float32(value)])
    return bits


def as_float(bits: Any) -> Float32:
    """The fp32 value of 32 bits."""
    (value,) = assemble("mov.b32 $0, $1;", [Float32], [Int32(bits)])
    return value


@dataclass(frozen=True)
class Grid:
    """The non-negative values of a small format.

    Attributes:
        mantissa_bits: Explicit significand bits.
        least_exponent: Exponent of the smallest normal value.
        largest: Largest finite value.
    """

    mantissa_bits: int
    least_exponent: int
    largest: float

    def code(self, magnitude: Any) -> Int32:
        """The code of the nearest value; ``magnitude`` in [0, largest], no NaN."""
        bits = as_bits(magnitude)
        shift = 23 - self.mantissa_bits
        half = (1 << (shift - 1)) - 1
        normal = (bits + half + ((bits >> shift) & 1)) >> shift
        normal -= (126 + self.least_exponent) << self.mantissa_bits
        steps = as_bits(add(magnitude, 2.0 ** (shift + self.least_exponent))) & ((2 << self.mantissa_bits) - 1)
        return cutlass.select_(bits < (127 + self.least_exponent) << 23, steps, normal)

    def value(self, magnitude: Any) -> Float32:
        """The nearest value itself; ``magnitude`` in [0, largest], no NaN.

        Adding a power of two whose unit in the last place is the step around ``magnitude`` rounds to that step.
        """
        exponent = cutlass.max(as_bits(magnitude) & _INFINITY, Int32((127 + self.least_exponent) << 23))
        anchor = as_float(exponent + ((23 - self.mantissa_bits) << 23))
        return add(add(magnitude, anchor), -anchor)


E2M1 = Grid(1, 0, 6.0)
E2M1_UNIT = 2.0**-14  # what `e2m1_word` rounds multiples of
E4M3 = Grid(3, -6, 448.0)
E5M2 = Grid(2, -14, 57344.0)
_FP8 = {"float8_e4m3fn": (E4M3, "e4m3x2"), "float8_e5m2": (E5M2, "e5m2x2")}


def has_fp8(arch: str) -> bool:
    """Whether a target converts to FP8 by itself."""
    return arch == "sm_89" or not arch.startswith("sm_8")


def clamped_magnitude(value: Any, largest: float) -> Float32:
    """``min(|value|, largest)``, ``largest`` for NaN: one instruction."""
    (magnitude,) = assemble(
        "{ .reg .f32 m; abs.f32 m, $1; min.f32 $0, m, $2; }", [Float32], [Float32(value), Float32(largest)]
    )
    return magnitude


# 2^-14 of a value is subnormal in fp16 where the value is in E2M1, so that fp16's bits hold the code: its last bit is
# bit 9. What the conversion to fp16 cuts off must still tell a value just above a tie from the tie, so it leaves a one
# behind, in the lowest bit that survives in fp16's subnormals. Rounding those bits to even takes five instructions of
# the pipe of minima and shifts. Three of the following go to another: the code of a magnitude m is min(2 m, m + 2,
# m / 2 + 4) rounded, since the three lines meet where the step doubles, and each line added to 1024 in one rounding
# leaves the integer in the low bits.
_KEEP_REST = "mov.b32 m, {0}; add.s32 t, m, 0x7FFF; and.b32 t, t, 0x8000; or.b32 m, m, t; mov.b32 {0}, m; "
_TO_EVEN = (
    "mov.b32 a, 0x78007800; mov.b32 b, 0x74007400; mov.b32 c, 0x70007000; "
    "mov.b32 x, {0:#x}; mov.b32 y, {1:#x}; mov.b32 z, {2:#x}; "
    "fma.rn.f16x2 a, m, a, x; fma.rn.f16x2 b, m, b, y; fma.rn.f16x2 c, m, c, z; "
    "min.f16x2 m, a, b; min.f16x2 $0, m, c; "
)
# Bits 12 to 14 of each half; exact for what was cut off too, which never reaches the next tie.
_AWAY = "mad.lo.s32 $0, m, 8, 0x08000800; "
_E2M1_PAIR = (
    "{{ .reg .f32 lo, hi; .reg .b32 m, t, a, b, c, x, y, z; mov.f32 lo, $2; mov.f32 hi, $3; {rest}"
    "cvt.rz.f16x2.f32 $1, hi, lo; abs.f16x2 m, $1; mov.b32 t, 0x0E000E00; min.f16x2 m, m, t; {round} }}"
)
# Two pairs of codes as a byte in each half: the low one, if rounded to even. There odd * 16 + even carries the 6 of
# 16 * 0x6400 into the upper half, so lines of even codes start 6 below 0x100 there. Of the others it is the high one.
_CARRY = 6
_MERGE_TO_EVEN = "mad.lo.s32 $0, $2, 16, $1;"
_MERGE_AWAY = "{ .reg .b32 e; shr.u32 e, $1, 4; lop3.b32 $0, e, $2, 0xF000F000, 0xD8; }"
_WITH_SIGNS = "lop3.b32 $0, $1, $2, {mask:#x}, 0xF8;"  # of bytes that are all ones where a value is negative


def e2m1_word(values: list[Any], *, scaled: bool = False, apart: bool = False, away: bool = False) -> Int32:
    """Eight values as E2M1 codes, the first in the low four bits; beyond 6 as 6, NaN as +6.

    Args:
        values: fp32.
        scaled: Whether they are given times `E2M1_UNIT`, which saves a multiplication each.
        apart: Whether none is nearer to the middle between two codes than 2^-8 of itself, unless below it or exactly
            there, which saves two instructions each.
        away: Whether ties go away from zero: for approximate values, whose ties mean nothing, half the instructions.
    """
    if not scaled:
        values = [multiply(value, E2M1_UNIT) for value in values]
    rest = "" if apart or away else _KEEP_REST.format("lo") + _KEEP_REST.format("hi")
    codes, halves = [], []
    for low, high in ((0, 2), (1, 3), (4, 6), (5, 7)):
        start = 0x64006400 + (0x100 - _CARRY << 16 if low % 2 == 0 else 0)
        lines = _TO_EVEN.format(*(start + rise * 0x10001 for rise in (0, 2, 4)))
        code = _E2M1_PAIR.format(rest=rest, round=_AWAY if away else lines)
        rounded, half = assemble(code, [Int32, Int32], [Float32(values[low]), Float32(values[high])])
        codes.append(rounded)
        halves.append(half)
    merge, byte = (_MERGE_AWAY, 0x7531) if away else (_MERGE_TO_EVEN, 0x6420)
    bytes_of = [assemble(merge, [Int32], codes[start : start + 2])[0] for start in (0, 2)]
    word = permute_bytes(bytes_of[0], bytes_of[1], byte)
    for first, mask in ((0, 0x08080808), (1, 0x80808080)):
        signs = permute_bytes(halves[first], halves[first + 2], 0xFDB9)
        (word,) = assemble(_WITH_SIGNS.format(mask=mask), [Int32], [word, signs])
    return Int32(word)


def fp8_words(name: str, values: list[Any], native: bool) -> list[Int32]:
    """Values as FP8 codes, four a word, saturating; NaN as 0x7F.

    Args:
        name: ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
        values: A multiple of four of them.
        native: Whether the target has the conversion; see `has_fp8`.
    """
    grid, suffix = _FP8[name]
    words = []
    for start in range(0, len(values), 4):
        four = [Float32(value) for value in values[start : start + 4]]
        if native:
            code = (
                f"{{ .reg .b16 lo, hi; cvt.rn.satfinite.{suffix}.f32 lo, $2, $1; "
                f"cvt.rn.satfinite.{suffix}.f32 hi, $4, $3; mov.b32 $0, {{lo, hi}}; }}"
            )
            words += assemble(code, [Int32], four)
            continue
        word = Int32(0)
        for index, value in enumerate(four):
            bits = as_bits(value)
            code = grid.code(clamped_magnitude(value, grid.largest)) | ((bits >> 24) & 0x80)
            word = word | (cutlass.select_((bits & _MAGNITUDE) > _INFINITY, Int32(0x7F), code) << (8 * index))
        words.append(word)
    return words
