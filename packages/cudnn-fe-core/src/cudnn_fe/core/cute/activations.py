"""Activations on float32 values, as the epilogues use them."""

from __future__ import annotations

import math

import cutlass
from cutlass import Float32, cute

__all__ = ["geglu", "maximum", "minimum", "sigmoid", "silu", "swiglu"]

_LOG2_E = math.log2(math.e)


def sigmoid(gate: Float32) -> Float32:
    """``1 / (1 + exp2(-gate * log2(e)))``, approximate exponential and reciprocal: two special-function slots."""
    return cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(gate * Float32(-_LOG2_E), fastmath=True))


def silu(gate: Float32) -> Float32:
    """``gate * sigmoid(gate)``."""
    return gate * sigmoid(gate)


def swiglu(value: Float32, gate: Float32) -> Float32:
    """``value * (sigmoid(gate) * gate)``, in this order of rounding."""
    return value * silu(gate)


def geglu(up: Float32, gate: Float32, offset: Float32, alpha: float, most: float, least: float) -> Float32:
    """``gate' * sigmoid(alpha * gate') * (up' + offset)``, gate' at most `most`, up' between `least` and `most`.

    NaN stays NaN.
    """
    gate = minimum(gate, most)
    up = minimum(maximum(up, least), most)
    return sigmoid(gate * Float32(alpha)) * gate * (up + offset)


def minimum(x: Float32, bound: float) -> Float32:
    """The lesser of the two; NaN for NaN, unlike the hardware's plain minimum."""
    return cutlass.select_(x > Float32(bound), Float32(bound), x)


def maximum(x: Float32, bound: float) -> Float32:
    """The greater of the two; NaN for NaN."""
    return cutlass.select_(x < Float32(bound), Float32(bound), x)
