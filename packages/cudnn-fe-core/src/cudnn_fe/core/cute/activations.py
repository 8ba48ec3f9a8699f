"""Activations on float32 values and their derivatives, as the epilogues use them."""

from __future__ import annotations

import math
from typing import Any

import cutlass
from cutlass import Float32, cute

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = [
    "GEGLU_ALPHA",
    "GEGLU_CLAMP",
    "bounded",
    "geglu",
    "geglu_gradient",
    "rectified",
    "sigmoid",
    "silu",
    "situglu",
    "situglu_gradient",
    "swiglu",
    "swiglu_gradient",
    "tanh",
]

GEGLU_ALPHA, GEGLU_CLAMP = 1.702, 7.0
_LOG2_E = math.log2(math.e)


def sigmoid(gate: Float32, scale: Float32 | None = None) -> Float32:
    """``1 / (1 + exp2(-gate * log2(e)))``, approximate exponential and reciprocal: two special-function slots.

    A ``scale`` costs nothing where the same one serves several values: its reciprocal goes into the sum.
    """
    exponential = cute.math.exp2(gate * Float32(-_LOG2_E), fastmath=True)
    if scale is None:
        return cute.arch.rcp_approx(Float32(1.0) + exponential)
    inverse = cute.arch.rcp_approx(scale)
    return cute.arch.rcp_approx(exponential * inverse + inverse)


def tanh(x: Float32) -> Float32:
    """Within a few units in the last place, small ``x`` too."""
    return cute.math.tanh(x)


def rectified(x: Float32) -> Float32:
    """``max(x, 0)`` with NaN kept."""
    return cutlass.select_(x <= Float32(0.0), Float32(0.0), x)


def silu(gate: Float32) -> Float32:
    """``gate * sigmoid(gate)``."""
    return gate * sigmoid(gate)


def swiglu(value: Float32, gate: Float32) -> Float32:
    """``value * (sigmoid(gate) * gate)``, in this order of rounding."""
    return value * silu(gate)


def swiglu_gradient(value: Float32, gate: Float32) -> tuple[Float32, Float32, Float32]:
    """``(d/dvalue, d/dgate, swiglu)``."""
    share = sigmoid(gate)
    # s + G * s * (1 - s): far out, G * s or 1 - s is an exact zero and its partner finite, so no inf * 0.
    through = gate * share
    return through, value * (share + through * (Float32(1.0) - share)), value * through


def _least(x: Any, bound: Any) -> Float32:
    """The smaller of the two; NaN stays NaN."""
    (value,) = assemble("min.NaN.f32 $0, $1, $2;", [Float32], [Float32(x), Float32(bound)])
    return value


def _most(x: Any, bound: Any) -> Float32:
    """The larger of the two; NaN stays NaN."""
    (value,) = assemble("max.NaN.f32 $0, $1, $2;", [Float32], [Float32(x), Float32(bound)])
    return value


def bounded(x: Any, low: Any, high: Any) -> Float32:
    """``x`` within bounds; NaN stays NaN."""
    return _least(_most(x, low), high)


def geglu(
    value: Float32,
    gate: Float32,
    offset: Float32,
    alpha: Any = GEGLU_ALPHA,
    high: Any = GEGLU_CLAMP,
    low: Any = -GEGLU_CLAMP,
) -> Float32:
    """``(value + offset) * (sigmoid(alpha * gate) * gate)`` of the gate bounded above and the value on both sides."""
    gate, value = _least(gate, high), bounded(value, low, high)
    return (value + offset) * (sigmoid(gate * alpha) * gate)


def situglu(value: Float32, gate: Float32, beta1: Float32, beta2: Float32) -> Float32:
    """``(beta1 * tanh(gate / beta1) * sigmoid(gate)) * (beta2 * tanh(value / beta2))``."""
    return beta1 * tanh(gate / beta1) * sigmoid(gate) * (beta2 * tanh(value / beta2))


def situglu_gradient(value: Float32, gate: Float32, beta1: Float32, beta2: Float32) -> tuple[Float32, Float32, Float32]:
    """``(d/dvalue, d/dgate, situglu)``."""
    soft_gate, soft_value = tanh(gate / beta1), tanh(value / beta2)
    open_, shut = sigmoid(gate), sigmoid(-gate)
    left, right = beta1 * soft_gate * open_, beta2 * soft_value
    of_gate = right * ((Float32(1.0) - soft_gate * soft_gate) * open_ + left * shut)
    return left * (Float32(1.0) - soft_value * soft_value), of_gate, left * right


def geglu_gradient(
    value: Float32, gate: Float32, offset: Float32, alpha: Any, high: Any, low: Any
) -> tuple[Float32, Float32, Float32]:
    """``(d/dvalue, d/dgate, geglu)``; gradients flow at exactly the bounds, and none does beyond them."""
    upper, inner = _least(gate, high), bounded(value, low, high)
    share = sigmoid(upper * alpha)
    through, shifted = upper * share, inner + offset
    of_gate = shifted * (share + alpha * through * (Float32(1.0) - share))
    flows = Float32(value >= low) * Float32(value <= high)
    return through * flows, of_gate * Float32(gate <= high), shifted * through
