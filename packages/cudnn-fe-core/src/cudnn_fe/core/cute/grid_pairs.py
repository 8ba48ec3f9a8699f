"""Two 16-bit floating-point values in one word, rounded to the grid of a smaller format without leaving it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from cudnn_fe.core.cute.ptx_base import assemble
from cudnn_fe.core.cute.small_floats import Grid

__all__ = ["BFLOAT16", "FLOAT16", "Pairs", "with_signs"]

_SIGNS = -0x7FFF8000


def _word(half: int) -> Int32:
    """The same sixteen bits twice."""
    both = half << 16 | half
    return Int32(both - (1 << 32) if both >= 1 << 31 else both)


@dataclass(frozen=True)
class Pairs:
    """Arithmetic on words of two values of one 16-bit type.

    Attributes:
        kind: Its name in PTX.
        mantissa_bits: Explicit significand bits.
        bias: Of the exponent.
    """

    kind: str
    mantissa_bits: int
    bias: int

    def power_of_two(self, exponent: int) -> Int32:
        """2 to an exponent, twice."""
        return _word((self.bias + exponent) << self.mantissa_bits)

    def fused_multiply_add(self, a: Any, b: Any, c: Any) -> Int32:
        """``a * b + c``, rounded once."""
        return self._of(f"fma.rn.{self.kind} $0, $1, $2, $3;", a, b, c)

    def multiply(self, a: Any, b: Any) -> Int32:
        """``a * b``, rounded once."""
        return self.fused_multiply_add(a, b, Int32(_SIGNS))  # plus -0, which leaves every sign

    def larger_magnitude(self, a: Any, b: Any) -> Int32:
        """``max(|a|, |b|)``, NaN left out."""
        code = f"{{ .reg .b32 a, b; abs.{self.kind} a, $1; abs.{self.kind} b, $2; max.{self.kind} $0, a, b; }}"
        return self._of(code, a, b)

    def on_grid(self, grid: Grid, values: Any) -> Int32:
        """The nearest magnitudes of a small format, ties to even; its largest beyond it and for NaN.

        As `Grid.value` does it: adding a power of two whose last place is the step around a value rounds to that step.
        """
        largest = _word(self._bits(grid.largest))
        exponents = _word(((1 << (15 - self.mantissa_bits)) - 1) << self.mantissa_bits)
        rise = _word((self.mantissa_bits - grid.mantissa_bits) << self.mantissa_bits)
        code = (
            f"{{ .reg .b32 m, e; abs.{self.kind} m, $1; min.{self.kind} m, m, $2; and.b32 e, m, $3; "
            f"max.{self.kind} e, e, $4; add.s32 e, e, $5; fma.rn.{self.kind} m, m, $6, e; "
            f"fma.rn.{self.kind} $0, e, $7, m; }}"
        )
        least, one = self.power_of_two(grid.least_exponent), self.power_of_two(0)
        minus_one = _word(1 << 15 | self.bias << self.mantissa_bits)
        return self._of(code, values, largest, exponents, least, rise, one, minus_one)

    def _bits(self, value: float) -> int:
        """The bits of a positive normal value that the type holds exactly."""
        mantissa, exponent = value, 0
        while mantissa >= 2.0:
            mantissa, exponent = mantissa / 2.0, exponent + 1
        return ((self.bias + exponent) << self.mantissa_bits) + int((mantissa - 1.0) * (1 << self.mantissa_bits))

    @staticmethod
    def _of(code: str, *words: Any) -> Int32:
        (found,) = assemble(code, [Int32], [Int32(word) for word in words])
        return found


BFLOAT16 = Pairs("bf16x2", 7, 127)
FLOAT16 = Pairs("f16x2", 10, 15)


def with_signs(magnitudes: Any, values: Any) -> Int32:
    """Magnitudes with the signs of other pairs."""
    (found,) = assemble("lop3.b32 $0, $1, $2, $3, 0xD8;", [Int32], [Int32(magnitudes), Int32(values), Int32(_SIGNS)])
    return found
