"""The PTX machine's arithmetic: numbers and bits, register to register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudnn_fe_testkit.ptx import Instruction
from cudnn_fe_testkit.ptx_values import BITS, convert, kind_of, permute_bytes

__all__ = ["LOGIC", "Arithmetic"]

Array = np.ndarray[Any, Any]
_NARROW = frozenset({"bf16", "f16"})
_HELD = {"bf16": "bf16", "f16": "f16", "bf16x2": "b32", "f16x2": "b32"}
LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Arithmetic:
    """Instructions of a machine that reads and writes registers."""

    def read(self, operand: str, kind: str) -> Array:
        """An operand of the threads that take part, as numbers of a PTX type."""
        raise NotImplementedError

    def write(self, register: str, values: Array) -> None:
        """Set a register of the threads that take part."""
        raise NotImplementedError

    def _operands(self, one: Instruction, kind: str | None = None) -> list[Array]:
        return [self.read(x, kind or one.words[-1]) for x in one.operands[1:]]

    def _set(self, one: Instruction, values: Array) -> None:
        self.write(one.operands[0], values.astype(kind_of(one.words[-1])))

    def _add(self, one: Instruction) -> None:
        x, y = self._pairs(one, one.operands[1:])
        self._set_pairs(one, x + y)

    def _sub(self, one: Instruction) -> None:
        x, y = self._pairs(one, one.operands[1:])
        self._set_pairs(one, x - y)

    def _mul(self, one: Instruction) -> None:
        x, y = self._pairs(one, one.operands[1:])
        if one.words[0] == "wide":
            wide = f"{x.dtype.kind}{2 * x.dtype.itemsize}"
            self.write(one.operands[0], x.astype(wide) * y.astype(wide))
        elif one.words[0] == "hi":
            product = x.astype(object) * y.astype(object) >> BITS[one.words[-1]]
            self.write(one.operands[0], product.astype(x.dtype))
        else:
            self._set_pairs(one, x * y)

    def _mad(self, one: Instruction) -> None:
        kind = one.words[-1]
        x, y, z = (self.read(name, kind) for name in one.operands[1:])
        if one.words[0] == "wide":
            wide = f"{x.dtype.kind}{2 * x.dtype.itemsize}"
            z = self.read(one.operands[3], f"{kind[0]}{2 * BITS[kind]}")
            self.write(one.operands[0], x.astype(wide) * y.astype(wide) + z)
        else:
            self._set(one, x * y + z)

    def _fma(self, one: Instruction) -> None:
        x, y, z = (value.astype(np.longdouble) for value in self._pairs(one, one.operands[1:]))
        total = x * y + z
        self._set_pairs(one, np.maximum(total, 0) if "relu" in one.words else total)

    def _pairs(self, one: Instruction, operands: tuple[str, ...]) -> list[Array]:
        """Numbers; those of a packed type as (2, M), and narrow ones in float64, where no sum is rounded twice."""
        kind = one.words[-1]
        if kind.removesuffix("x2") not in _NARROW:
            return [self.read(x, kind) for x in operands]
        return [convert(self.read(x, _HELD[kind]), kind, "f32").astype(np.float64) for x in operands]

    def _set_pairs(self, one: Instruction, values: Array) -> None:
        kind = one.words[-1]
        narrow = kind.removesuffix("x2") in _NARROW
        self.write(one.operands[0], convert(values, "f64", kind) if narrow else values.astype(kind_of(kind)))

    def _min(self, one: Instruction) -> None:
        self._extreme(one, np.fmin, np.minimum)

    def _max(self, one: Instruction) -> None:
        self._extreme(one, np.fmax, np.maximum)

    def _extreme(self, one: Instruction, plain: Callable[..., Array], of_nan: Callable[..., Array]) -> None:
        values = self._pairs(one, one.operands[1:])
        signs = np.signbit(values[0]) if "xorsign" in one.words else None
        if "abs" in one.words:
            signs = signs ^ np.signbit(values[1]) if signs is not None else None
            values = [np.abs(x) for x in values]
        best = values[0]
        for other in values[1:]:
            best = (of_nan if "NaN" in one.words else plain)(best, other)
        if signs is not None:
            best = np.copysign(best, np.where(signs, -1, 1))
        if "relu" in one.words:
            best = np.maximum(best, 0).astype(best.dtype)
        self._set_pairs(one, best)

    def _neg(self, one: Instruction) -> None:
        self._set_pairs(one, -self._pairs(one, one.operands[1:])[0])

    def _abs(self, one: Instruction) -> None:
        self._set_pairs(one, np.abs(self._pairs(one, one.operands[1:])[0]))

    def _div(self, one: Instruction) -> None:
        x, y = self._operands(one)
        self._set(one, x / y if one.words[-1][0] == "f" else _quotient(x, y))

    def _rem(self, one: Instruction) -> None:
        x, y = self._operands(one)
        self._set(one, x - _quotient(x, y) * y)

    def _ex2(self, one: Instruction) -> None:
        self._set(one, np.exp2(self._operands(one)[0].astype(np.float64)))

    def _rcp(self, one: Instruction) -> None:
        self._set(one, 1 / self._operands(one)[0].astype(np.longdouble))

    def _sqrt(self, one: Instruction) -> None:
        self._set(one, np.sqrt(self._operands(one)[0].astype(np.longdouble)))

    def _rsqrt(self, one: Instruction) -> None:
        self._set(one, 1 / np.sqrt(self._operands(one)[0].astype(np.longdouble)))

    # Bits

    def _and(self, one: Instruction) -> None:
        self.write(one.operands[0], LOGIC[one.name](*self._operands(one)))

    _or = _xor = _and

    def _not(self, one: Instruction) -> None:
        self.write(one.operands[0], ~self._operands(one)[0])

    def _lop3(self, one: Instruction) -> None:
        a, b, c = (self.read(x, "b32") for x in one.operands[1:4])
        table, found = int(one.operands[4], 0), np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        self.write(one.operands[0], found)

    def _shl(self, one: Instruction) -> None:
        x, count, bits = self._shift(one)
        self.write(
            one.operands[0], np.where(count < bits, x << np.minimum(count, bits - 1).astype(x.dtype), 0).astype(x.dtype)
        )

    def _shr(self, one: Instruction) -> None:
        x, count, bits = self._shift(one)
        shifted = x >> np.minimum(count, bits - 1).astype(x.dtype)
        kept = shifted if one.words[-1][0] == "s" else np.where(count < bits, shifted, 0)
        self.write(one.operands[0], kept.astype(x.dtype))

    def _shift(self, one: Instruction) -> tuple[Array, Array, int]:
        kind = one.words[-1]
        return self.read(one.operands[1], kind), self.read(one.operands[2], "u32").astype(int), BITS[kind]

    def _shf(self, one: Instruction) -> None:
        low, high, given = (self.read(x, "u32").astype(np.uint64) for x in one.operands[1:])
        count: Array = given & np.uint64(31) if "wrap" in one.words else np.minimum(given, np.uint64(32))
        both = high << np.uint64(32) | low
        self.write(
            one.operands[0],
            (both >> count if one.words[0] == "r" else both << count >> np.uint64(32)).astype(np.uint32),
        )

    def _prmt(self, one: Instruction) -> None:
        self.write(one.operands[0], permute_bytes(*self._operands(one, "u32")))


def _quotient(x: Array, y: Array) -> Array:
    """Integer division toward zero."""
    wide, by = x.astype(object), y.astype(object)
    found: Array = (abs(wide) // abs(by) * np.sign(wide) * np.sign(by)).astype(x.dtype)
    return found
