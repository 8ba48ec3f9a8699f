"""Element types by their names, whoever's object names them: torch, NumPy, ml_dtypes, the CuTe DSL or a string."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cudnn_fe.core.errors import DTypeError

__all__ = ["DType", "dtype", "dtypes"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: The NumPy / ml_dtypes name, e.g. ``"bfloat16"``, ``"float8_e4m3fn"``.
        bits: Width of one element in bits.
        kind: ``"float"``, ``"int"``, ``"uint"`` or ``"bool"``.
        cutlass: Name of the CuTe DSL's type, e.g. ``"BFloat16"``.
        torch: Name of torch's dtype, e.g. ``"float8_e4m3fn"``.
        mantissa_bits: Explicit significand bits of a float, 0 for other kinds.
    """

    name: str
    bits: int
    kind: str
    cutlass: str
    torch: str
    mantissa_bits: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element (packed FP4: one byte holds two)."""
        return max(self.bits // 8, 1)

    @property
    def is_fp8(self) -> bool:
        """Whether this is one of the two FP8 element formats."""
        return self.name in ("float8_e4m3fn", "float8_e5m2")

    @property
    def unit_roundoff(self) -> float:
        """Half a unit in the last place at 1.0: the largest relative error of one rounding to nearest."""
        return 2.0 ** -(self.mantissa_bits + 1)

    def __str__(self) -> str:
        return self.name


_TABLE = (
    DType("float64", 64, "float", "Float64", "float64", 52),
    DType("float32", 32, "float", "Float32", "float32", 23),
    DType("float16", 16, "float", "Float16", "float16", 10),
    DType("bfloat16", 16, "float", "BFloat16", "bfloat16", 7),
    DType("float8_e4m3fn", 8, "float", "Float8E4M3FN", "float8_e4m3fn", 3),
    DType("float8_e5m2", 8, "float", "Float8E5M2", "float8_e5m2", 2),
    DType("float8_e8m0fnu", 8, "float", "Float8E8M0FNU", "float8_e8m0fnu"),
    DType("float4_e2m1fn", 4, "float", "Float4E2M1FN", "float4_e2m1fn_x2", 1),
    DType("int8", 8, "int", "Int8", "int8"),
    DType("int32", 32, "int", "Int32", "int32"),
    DType("int64", 64, "int", "Int64", "int64"),
    DType("uint8", 8, "uint", "Uint8", "uint8"),
    DType("bool", 8, "bool", "Boolean", "bool"),
)
_BY_NAME = {spelling: row for row in _TABLE for spelling in (row.name, row.cutlass, row.torch)}


def dtypes() -> tuple[DType, ...]:
    """Every element type that an operand may have."""
    return _TABLE


@lru_cache(maxsize=256)
def _lookup(spelling: str) -> DType | None:
    return _BY_NAME.get(spelling.removeprefix("torch."))


def dtype(given: Any, *, operand: str = "dtype") -> DType:
    """The element type that ``given`` names.

    Args:
        given: A `DType`, torch dtype, NumPy or ml_dtypes dtype or scalar type, CuTe DSL type, or a name.
        operand: What the message calls it when it is not one.

    Raises:
        DTypeError: ``given`` is None or names no supported element type.
    """
    if isinstance(given, DType):
        return given
    if isinstance(given, str):
        spelling = given
    elif isinstance(given, type):
        spelling = given.__name__
    else:
        spelling = getattr(given, "name", None) or str(given)
    found = _lookup(spelling)
    if found is None:
        known = ", ".join(row.name for row in _TABLE)
        raise DTypeError(operand, got=repr(given), wanted=f"one of {known}", remedy="name a supported dtype")
    return found
