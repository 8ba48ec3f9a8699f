"""Block scaling in exact rational arithmetic, one number at a time: what the array code is held against.

``python -m cudnn_fe_testkit.block_scale`` writes the conformance file beside this module.
"""

from __future__ import annotations

import json
import math
import struct
from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

CONFORMANCE = Path(__file__).with_name("block_scale_conformance.json")

INF = math.inf
_VALUES_4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MAX = {"e4m3": 448, "e5m2": 57344, "e2m1": 6}
FORMATS = {
    "mxfp8_e4m3": ("e4m3", "e8m0", 32),
    "mxfp8_e5m2": ("e5m2", "e8m0", 32),
    "mxfp4": ("e2m1", "e8m0", 32),
    "nvfp4": ("e2m1", "e4m3", 16),
}


def fl(x: Fraction | float) -> float:
    """The float32 nearest to an exact number, ties to even, infinite beyond the largest; infinities and NaN pass."""
    if isinstance(x, float) and (math.isnan(x) or math.isinf(x)):
        return x
    exact = Fraction(x)
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(size / unit) * unit  # Fraction rounds ties to even
    value = INF if rounded >= Fraction(2) ** 128 else float(rounded)
    return math.copysign(value, exact)


def times(a: float, b: float) -> float:
    """The float32 product."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return a * b
    return math.copysign(abs(fl(Fraction(a) * Fraction(b))), math.copysign(1, a) * math.copysign(1, b))


def reciprocal(a: float) -> float:
    """The float32 reciprocal of a scale."""
    if math.isnan(a):
        return a
    return INF if a == 0 else fl(1 / Fraction(a))


@cache
def positive_values(name: str) -> tuple[tuple[int, float], ...]:
    """(code, value) of every finite value that is not negative, in ascending order."""
    if name == "e2m1":
        return tuple(enumerate(_VALUES_4))
    if name == "e8m0":
        return tuple((code, 2.0 ** (code - 127)) for code in range(255))
    mantissa, bias, last = (3, 7, 0x7E) if name == "e4m3" else (2, 15, 0x7B)
    rows = []
    for code in range(last + 1):
        exponent, fraction = code >> mantissa, code & (2**mantissa - 1)
        significand = fraction + (2**mantissa if exponent else 0)
        rows.append((code, significand * 2.0 ** (max(exponent, 1) - bias - mantissa)))
    return tuple(rows)


def encode(x: float, name: str) -> int:
    """The saturating code, found by search: up in E8M0, nearest with ties to the even code elsewhere."""
    if math.isnan(x):
        return {"e8m0": 0xFF, "e2m1": 0x7}.get(name, 0x7F)
    rows = positive_values(name)
    size = abs(x)
    if name == "e8m0":
        return next((code for code, value in rows if value >= size), rows[-1][0])
    if size >= rows[-1][1]:
        code = rows[-1][0]
    else:
        above = bisect_right(rows, size, key=lambda row: row[1])
        code = min(rows[above - 1 : above + 1], key=lambda row: (abs(Fraction(row[1]) - Fraction(size)), row[0] % 2))[0]
    sign = 0x8 if name == "e2m1" else 0x80
    return code | (sign if math.copysign(1, x) < 0 else 0)


def decode(code: int, name: str) -> float:
    """The value of a code."""
    if name == "e8m0":
        return math.nan if code == 0xFF else 2.0 ** (code - 127)
    sign = 0x8 if name == "e2m1" else 0x80
    magnitude = code & (sign - 1)
    if name == "e5m2" and magnitude == 0x7C:
        return math.copysign(INF, -1 if code & sign else 1)
    values = dict(positive_values(name))
    return math.copysign(values[magnitude], -1 if code & sign else 1) if magnitude in values else math.nan


def smaller(a: float, limit: float) -> float:
    """The minimum, NaN kept."""
    return a if math.isnan(a) else min(a, limit)


def quantize_block(x: list[float], name: str, recipe: str, norm: float) -> tuple[int, list[int]]:
    """Scale code and element codes of one block, written after the tables of the documentation."""
    element, scale, _ = FORMATS[name]
    largest = fl(Fraction(2) ** 128 - Fraction(2) ** 104)
    limit = 128 if recipe.startswith("epilogue") and element == "e5m2" else _MAX[element]
    quotient = fl(Fraction(1, limit))
    if recipe == "converter":
        x, norm = [times(value, norm) for value in x], 1.0
    numbers = [abs(v) for v in x if not math.isnan(v)]
    a = max(numbers) if len(numbers) == len(x) or (recipe == "power_of_two" and numbers) else math.nan
    if recipe == "epilogue_columns":
        code = encode(times(a, times(quotient, norm)), scale)
        multiplier = times(norm, smaller(reciprocal(decode(code, scale)), largest))
    else:
        code = encode(times(times(a, quotient), norm), scale)
        multiplier = times(norm, reciprocal(decode(code, scale)))
    multiplier = smaller(multiplier, largest)
    return code, [encode(times(value, multiplier), element) for value in x]


def dequantize_block(scale_code: int, codes: list[int], name: str, factor: float) -> list[float]:
    """The float32 values of one block."""
    element, scale, _ = FORMATS[name]
    by = times(decode(scale_code, scale), factor)
    return [times(decode(code, element), by) for code in codes]


def hex_of(x: float) -> str:
    """A float32 as 8 hex digits; every NaN is the quiet one."""
    return "7fc00000" if math.isnan(x) else struct.pack(">f", x).hex()


def float_of(digits: str) -> float:
    """The inverse of `hex_of`."""
    return float(struct.unpack(">f", bytes.fromhex(digits))[0])


def _blocks(size: int) -> Iterator[tuple[str, list[float]]]:
    """Named inputs of one block; each says what it is there for."""
    import random

    rng = random.Random(7)
    pad = [0.0] * size

    def filled(*head: float) -> list[float]:
        return [*head, *pad][:size]

    yield "zeros of both signs", filled(0.0, -0.0)
    yield "normal data", [fl(rng.gauss(0, 1)) for _ in range(size)]
    yield "small data", [fl(rng.gauss(0, 1) * 2**-20) for _ in range(size)]
    yield "large data", [fl(rng.gauss(0, 1) * 2**100) for _ in range(size)]
    yield "ties of E2M1 and saturation", filled(6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -0.25, -5)
    yield "amax at a power of two times the limit", filled(448, 1, 17 / 16, 19 / 16, 57344 / 128)
    yield "amax just above", filled(fl(448 + 2**-15), 1, -1)
    yield "subnormal inputs", filled(2.0**-149, -(2.0**-127), 3 * 2.0**-130)
    yield "scale byte 0 with codes", filled(2.0**-120, 1.5 * 2.0**-122, -(2.0**-126))
    yield "scale between byte 0 and 1", filled(fl(448 * 2.0**-127 * 1.25), 2.0**-125)
    yield "largest float32", filled(fl(Fraction(2) ** 128 - Fraction(2) ** 104), 2.0**127, -(2.0**120))
    yield "infinity", filled(INF, -INF, 1.0, 2.0**127)
    yield "NaN", filled(1.0, math.nan, -2.0)
    yield "NaN and infinity", filled(INF, math.nan)
    yield "NaN alone", [math.nan] * size
    yield "one tiny value", filled(2.0**-140)
    yield "wide range", [fl((-1) ** i * 2.0 ** (-3 * i)) for i in range(size)]


def cases() -> Iterator[dict[str, Any]]:
    """Every case of the conformance file."""
    for name, (_, _, size) in FORMATS.items():
        recipes = ("power_of_two", "epilogue", "epilogue_columns", "converter")
        for recipe in recipes if name != "nvfp4" else recipes[1:]:
            for norm in (1.0,) if recipe == "power_of_two" else (1.0, fl(0.01), 2.0**100):
                for label, block in _blocks(size):
                    scale, codes = quantize_block(block, name, recipe, norm)
                    factor = reciprocal(norm)
                    yield {
                        "format": name,
                        "recipe": recipe,
                        "norm": hex_of(norm),
                        "input": label,
                        "scale": scale,
                        "codes": bytes(codes).hex(),
                        "values": "".join(map(hex_of, dequantize_block(scale, codes, name, factor))),
                    }


def conformance() -> dict[str, Any]:
    """The content of the file."""
    return {
        "about": "float32 is 8 hex digits, big endian, a code is 2; values = codes * (scale * (1 / norm))",
        "inputs": {
            str(size): {label: "".join(map(hex_of, block)) for label, block in _blocks(size)} for size in (16, 32)
        },
        "cases": list(cases()),
    }


if __name__ == "__main__":
    content = conformance()
    rows = ",\n".join(json.dumps(row) for row in content.pop("cases"))
    CONFORMANCE.write_text(f'{json.dumps(content, indent=1)[:-2]},\n "cases": [\n{rows}\n]}}\n')
