"""Gated activations and their derivatives on float32 arrays, for any array namespace."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import sigmoid

__all__ = ["CLAMP_MAX", "CLAMP_MIN", "GEGLU_ALPHA", "gated", "gated_derivative"]

GEGLU_ALPHA, CLAMP_MAX, CLAMP_MIN = 1.702, 7.0, -7.0


def _clamped(xp: Any, gate: Any, up: Any, high: float, low: float) -> tuple[Any, Any]:
    """Gate with an upper bound, up with both; NaN stays NaN."""
    most, least = xp.zeros_like(up) + high, xp.zeros_like(up) + low
    return xp.minimum(gate, most), xp.minimum(xp.maximum(up, least), most)


def gated(
    xp: Any,
    kind: str,
    gate: Any,
    up: Any,
    offset: float,
    alpha: float = GEGLU_ALPHA,
    high: float = CLAMP_MAX,
    low: float = CLAMP_MIN,
    beta1: float = 4.0,
    beta2: float = 25.0,
) -> Any:
    """A gated activation.

    ``sigmoid(gate) * gate * up`` for swiglu; for geglu the same of bounded gate and up, with ``sigmoid(alpha gate)``
    and ``up + offset``; for situglu ``beta1 tanh(gate / beta1) sigmoid(gate)`` times ``beta2 tanh(up / beta2)``.
    """
    if kind == "swiglu":
        return sigmoid(xp, gate) * gate * up
    if kind == "situglu":
        soft_gate, soft_up = xp.tanh(gate / beta1), xp.tanh(up / beta2)
        return beta1 * beta2 * soft_gate * sigmoid(xp, gate) * soft_up
    gate, up = _clamped(xp, gate, up, high, low)
    return sigmoid(xp, alpha * gate) * gate * (up + offset)


def gated_derivative(
    xp: Any,
    kind: str,
    gate: Any,
    up: Any,
    offset: float,
    alpha: float = GEGLU_ALPHA,
    high: float = CLAMP_MAX,
    low: float = CLAMP_MIN,
    beta1: float = 4.0,
    beta2: float = 25.0,
) -> tuple[Any, Any, Any]:
    """``(d/dgate, d/dup, value)`` of the activation; gradients flow at exactly the clamps.

    ``1 - sigmoid(x)`` is taken as ``sigmoid(-x)``, which keeps its digits for large x.
    """
    if kind == "swiglu":
        open_, shut = sigmoid(xp, gate), sigmoid(xp, -gate)
        silu = gate * open_
        return up * open_ * (1.0 + gate * shut), silu, up * silu
    if kind == "situglu":
        soft_gate, soft_up = xp.tanh(gate / beta1), xp.tanh(up / beta2)
        open_, shut = sigmoid(xp, gate), sigmoid(xp, -gate)
        left, right = beta1 * soft_gate * open_, beta2 * soft_up
        d_gate = right * ((1.0 - soft_gate * soft_gate) * open_ + left * shut)
        return d_gate, left * (1.0 - soft_up * soft_up), left * right
    g, u = _clamped(xp, gate, up, high, low)
    open_, shut = sigmoid(xp, alpha * g), sigmoid(xp, -alpha * g)
    shifted, zero = u + offset, xp.zeros_like(g)
    d_gate = open_ * shifted * (1.0 + alpha * g * shut)
    d_up = open_ * g
    return xp.where(gate <= high, d_gate, zero), xp.where((up >= low) & (up <= high), d_up, zero), shifted * d_up
