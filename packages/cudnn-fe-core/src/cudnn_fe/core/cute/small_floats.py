"""fp32 magnitudes rounded to E2M1 and E4M3, to nearest with ties to even, in the base instruction set.

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

__all__ = ["E2M1", "E4M3", "Grid", "as_bits", "as_float", "e2m1_word", "e4m3_words"]

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


def _clamped(value: Any, largest: float) -> Float32:
    return cute.arch.fmin(as_float(as_bits(value) & _MAGNITUDE), Float32(largest))


def e2m1_word(values: list[Any]) -> Int32:
    """Eight values as E2M1 codes, the first in the low four bits; beyond 6, infinities and NaN included, as 6."""
    word = Int32(0)
    for index, value in enumerate(values):
        sign = (as_bits(value) >> 28) & 8
        word = word | ((E2M1.code(_clamped(value, E2M1.largest)) | sign) << (4 * index))
    return word


def e4m3_words(values: list[Any], native: bool) -> list[Int32]:
    """Values as E4M3 codes, four a word, saturating; NaN as 0x7F.

    Args:
        values: A multiple of four of them.
        native: Whether the target has the conversion (SM89 and up).
    """
    words = []
    for start in range(0, len(values), 4):
        four = [Float32(value) for value in values[start : start + 4]]
        if native:
            code = (
                "{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, $2, $1; cvt.rn.satfinite.e4m3x2.f32 hi, $4, $3; "
                "mov.b32 $0, {lo, hi}; }"
            )
            words += assemble(code, [Int32], four)
            continue
        word = Int32(0)
        for index, value in enumerate(four):
            bits = as_bits(value)
            code = E4M3.code(_clamped(value, E4M3.largest)) | ((bits >> 24) & 0x80)
            word = word | (cutlass.select_((bits & _MAGNITUDE) > _INFINITY, Int32(0x7F), code) << (8 * index))
        words.append(word)
    return words
