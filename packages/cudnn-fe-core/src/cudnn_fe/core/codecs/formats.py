"""The low-precision formats as records of facts, and the value of every code, in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError

__all__ = ["E2M1", "E4M3", "E5M2", "E8M0", "FORMATS", "UE5M3", "Format", "Rounding", "decode_table", "format_of"]

Rounding = Literal["nearest", "up", "down"]
"""To nearest with ties to the even code, toward +infinity, or toward -infinity."""


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format of at most 16 bits: sign (if any), biased exponent, mantissa, from the top bit down.

    Attributes:
        name: Its ml_dtypes name where one exists, e.g. ``"float8_e4m3fn"``.
        bits: Width of a code.
        exponent_bits: Width of the biased exponent.
        mantissa_bits: Explicit significand bits.
        bias: Subtracted from the biased exponent.
        signed: Whether the top bit is a sign. Formats without one hold scales and encode ``|x|``.
        max: Largest finite value.
        min_normal: Smallest positive value with a full significand.
        min_subnormal: Smallest positive value; `min_normal` where there are no subnormals.
        has_inf: Whether infinities have codes.
        nan_codes: Every code that means NaN.
        max_code: Code of `max`.
        overflow_code: What a finite value too large becomes without saturation; None where only saturation exists.
        nan_code: What NaN becomes. E2M1 has no NaN and takes its maximum.
        rounding: The rounding `encode` uses unless told otherwise.
        has_native_dtype: Whether frameworks have a dtype of this name.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    signed: bool
    max: float
    min_normal: float
    min_subnormal: float
    has_inf: bool
    nan_codes: tuple[int, ...]
    max_code: int
    overflow_code: int | None
    nan_code: int
    rounding: Rounding = "nearest"
    has_native_dtype: bool = True

    def value(self, code: int) -> float:
        """The exact value of ``code``, computed from the definition and not from bit patterns of another format.

        Example:
            >>> E4M3.value(0x7E), E2M1.value(0xF), E8M0.value(0) == 2.0**-127
            (448.0, -6.0, True)
        """
        if code in self.nan_codes:
            return math.nan
        exponent_mantissa = code & ((1 << (self.exponent_bits + self.mantissa_bits)) - 1)
        sign = -1.0 if code > exponent_mantissa else 1.0
        exponent, mantissa = divmod(exponent_mantissa, 1 << self.mantissa_bits)
        if self.has_inf and exponent == (1 << self.exponent_bits) - 1:
            return sign * math.inf
        if exponent == 0 and self.mantissa_bits:
            return sign * math.ldexp(mantissa, 1 - self.bias - self.mantissa_bits)
        return sign * math.ldexp((1 << self.mantissa_bits) + mantissa, exponent - self.bias - self.mantissa_bits)


E4M3 = Format(
    "float8_e4m3fn", 8, 4, 3, 7, True, 448.0, 2.0**-6, 2.0**-9,
    has_inf=False, nan_codes=(0x7F, 0xFF), max_code=0x7E, overflow_code=0x7F, nan_code=0x7F,
)  # fmt: skip
"""OFP8 E4M3 (FP8 Formats for Deep Learning, arXiv:2209.05433; OCP OFP8 v1.0; OCP MX v1.0, 5.3.1)."""

E5M2 = Format(
    "float8_e5m2", 8, 5, 2, 15, True, 57344.0, 2.0**-14, 2.0**-16,
    has_inf=True, nan_codes=(0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), max_code=0x7B, overflow_code=0x7C, nan_code=0x7F,
)  # fmt: skip
"""OFP8 E5M2 (the same sources): an IEEE format."""

E2M1 = Format(
    "float4_e2m1fn", 4, 2, 1, 1, True, 6.0, 1.0, 0.5,
    has_inf=False, nan_codes=(), max_code=0x7, overflow_code=None, nan_code=0x7,
)  # fmt: skip
"""FP4 E2M1 (OCP MX v1.0, 5.3.3): neither infinity nor NaN."""

E8M0 = Format(
    "float8_e8m0fnu", 8, 8, 0, 127, False, 2.0**127, 2.0**-127, 2.0**-127,
    has_inf=False, nan_codes=(0xFF,), max_code=0xFE, overflow_code=0xFF, nan_code=0xFF, rounding="up",
)  # fmt: skip
"""The power-of-two scale E8M0 (OCP MX v1.0, 5.4.1): no sign, no zero."""

UE5M3 = Format(
    "ue5m3", 8, 5, 3, 15, False, 114688.0, 2.0**-14, 2.0**-17,
    has_inf=False, nan_codes=(0xFF,), max_code=0xFE, overflow_code=0xFF, nan_code=0xFF, has_native_dtype=False,
)  # fmt: skip
"""A scale with E4M3's precision and E5M2's range, in bytes of no framework's dtype."""

FORMATS: Mapping[str, Format] = MappingProxyType({row.name: row for row in (E4M3, E5M2, E2M1, E8M0, UE5M3)})
"""Every format, by name."""


def format_of(given: Any, *, operand: str = "format") -> Format:
    """The format that ``given`` names.

    Args:
        given: A `Format` of `FORMATS`, its name, or any spelling of its dtype that `cudnn_fe.core.dtypes.dtype` takes.
        operand: What the message calls it when it is none.

    Returns:
        The record.

    Raises:
        DTypeError: It is no low-precision format.

    Example:
        >>> format_of("float4_e2m1fn").max
        6.0
    """
    if isinstance(given, Format):
        name = given.name
    elif isinstance(given, str) and given in FORMATS:
        name = given
    else:
        name = dtype(given, operand=operand).name
    if name not in FORMATS:
        raise DTypeError(operand, got=name, wanted=f"one of {', '.join(FORMATS)}", remedy="name a format of the table")
    return FORMATS[name]


def decode_table(given: Any) -> tuple[float, ...]:
    """The value of every code of a format, in order of the codes.

    Args:
        given: What `format_of` takes.

    Returns:
        2 ** bits exact values; each one is a float32 value.

    Raises:
        DTypeError: It is no low-precision format.

    Example:
        >>> decode_table(E2M1)[:8]
        (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    """
    row = format_of(given)
    return tuple(row.value(code) for code in range(2**row.bits))
