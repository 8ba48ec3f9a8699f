"""Activations on float32 values, as the epilogues use them."""

from __future__ import annotations

import math

from cutlass import Float32, cute

__all__ = ["sigmoid", "silu", "swiglu"]

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
