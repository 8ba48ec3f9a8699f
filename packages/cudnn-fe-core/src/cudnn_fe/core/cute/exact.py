"""fp32 arithmetic whose rounding no compiler may change: one rounding an operation, or one for a fused pair.

Plain ``a * b + c`` in a kernel may or may not be contracted into one rounding. Contracts that fix it use these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cutlass import Float32

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = [
    "add",
    "divide",
    "divide_by",
    "fused_multiply_add",
    "magnitude",
    "multiply",
    "reciprocal_square_root",
    "square_root",
    "subtract",
]


def _one(code: str, *arguments: Any) -> Float32:
    (value,) = assemble(code, [Float32], [Float32(argument) for argument in arguments])
    return value


def add(a: Any, b: Any) -> Float32:
    """``a + b``, rounded once."""
    return _one("add.rn.f32 $0, $1, $2;", a, b)


def subtract(a: Any, b: Any) -> Float32:
    """``a - b``, rounded once."""
    return _one("sub.rn.f32 $0, $1, $2;", a, b)


def multiply(a: Any, b: Any) -> Float32:
    """``a * b``, rounded once."""
    return _one("mul.rn.f32 $0, $1, $2;", a, b)


def divide(a: Any, b: Any) -> Float32:
    """``a / b``, correctly rounded: some ten instructions and a slow path."""
    return _one("div.rn.f32 $0, $1, $2;", a, b)


def divide_by(a: Any, b: float) -> Float32:
    """``a / b`` for a constant ``b``, correctly rounded unless subnormal: five instructions, no slow path.

    The quotient by the rounded reciprocal is off by one unit at most, and one exact remainder corrects it (Markstein,
    1990). Infinities and NaN have no remainder and stay as they are.
    """
    divisor = float(np.float32(b))
    return _one(
        "{ .reg .f32 q, r; .reg .pred p; mul.rn.f32 q, $1, $2; fma.rn.f32 r, q, $3, $1; fma.rn.f32 r, r, $2, q; "
        "testp.finite.f32 p, q; selp.f32 $0, r, q, p; }",
        a,
        float(np.float32(1.0) / np.float32(divisor)),
        -divisor,
    )


def fused_multiply_add(a: Any, b: Any, c: Any) -> Float32:
    """``a * b + c``, rounded once."""
    return _one("fma.rn.f32 $0, $1, $2, $3;", a, b, c)


def magnitude(a: Any) -> Float32:
    """``|a|``; most instructions that use it take it without one of its own."""
    return _one("abs.f32 $0, $1;", a)


def square_root(a: Any) -> Float32:
    """The correctly rounded square root."""
    return _one("sqrt.rn.f32 $0, $1;", a)


def reciprocal_square_root(a: Any) -> Float32:
    """``1 / sqrt(a)`` within two units in the last place, by the special-function unit."""
    return _one("rsqrt.approx.f32 $0, $1;", a)
