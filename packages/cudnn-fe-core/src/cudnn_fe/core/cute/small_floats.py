"""fp32 values rounded to E2M1, E4M3 and E5M2, to nearest with ties to even, in the base instruction set.

The same codes as `cudnn_fe.core.codecs`. Subnormals come from one addition: a constant whose unit in the last place is
the format's smallest step leaves the rounded number of steps in the low bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.exact import add
from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["E2M1", "E4M3", "E5M2", "Grid", "as_bits", "as_float", "e2m1_word", "fp8_words", "has_fp8"]

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
        """The nearest value itself; ``magnitude`` in [0, largest], no NaN."""
        bits = as_bits(magnitude)
        shift = 23 - self.mantissa_bits
        half = (1 << (shift - 1)) - 1
        normal = (bits + half + ((bits >> shift) & 1)) & -(1 << shift)
        anchor = 2.0 ** (shift + self.least_exponent)
        steps = as_bits(add(add(magnitude, anchor), -anchor))
        return as_float(cutlass.select_(bits < (127 + self.least_exponent) << 23, steps, normal))


E2M1 = Grid(1, 0, 6.0)
E4M3 = Grid(3, -6, 448.0)
E5M2 = Grid(2, -14, 57344.0)
_FP8 = {"float8_e4m3fn": (E4M3, "e4m3x2"), "float8_e5m2": (E5M2, "e5m2x2")}


def has_fp8(arch: str) -> bool:
    """Whether a target converts to FP8 by itself."""
    return arch == "sm_89" or not arch.startswith("sm_8")


def _clamped(value: Any, largest: float) -> Float32:
    return cute.arch.fmin(as_float(as_bits(value) & _MAGNITUDE), Float32(largest))


def e2m1_word(values: list[Any]) -> Int32:
    """Eight values as E2M1 codes, the first in the low four bits; beyond 6, infinities and NaN included, as 6.

    With 2**e the value's power of two, or 1 if that is more, adding 2**(e + 22) leaves a sum whose low bits count steps
    of 2**(e - 1), rounded as the contract rounds; above them stands the exponent. The code is the count plus 2 e, and
    the sum's own exponent bits, shifted down, supply 2 e: ten instructions an element.
    """
    word = Int32(0)
    for index, value in enumerate(values):
        code = (
            "{ .reg .f32 a, m; .reg .b32 s, u, h; abs.f32 a, $2; min.f32 a, a, 0f40C00000; mov.b32 s, a; "
            "and.b32 s, s, 0x7F800000; mov.b32 m, s; max.f32 m, m, 0f3F800000; fma.rn.f32 a, m, 0f4A800000, a; "
            "mov.b32 s, a; shr.u32 u, s, 22; add.s32 u, u, s; add.s32 u, u, 6; mov.b32 h, $2; shr.u32 h, h, 28; "
            f"lop3.b32 u, u, h, 7, 0xE4; mad.lo.s32 $0, u, {1 << 4 * index}, $1; }}"
        )
        (word,) = assemble(code, [Int32], [word, Float32(value)])
    return word


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
            code = grid.code(_clamped(value, grid.largest)) | ((bits >> 24) & 0x80)
            word = word | (cutlass.select_((bits & _MAGNITUDE) > _INFINITY, Int32(0x7F), code) << (8 * index))
        words.append(word)
    return words
