"""What linear attention makes of its gates, weights, queries and keys before the recurrence, and back.

Everything is (tokens, heads, ...) in the type that sums are taken in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.arrays import round_through, sigmoid
from cudnn_fe.attention.linear.operands import Flags
from cudnn_fe.core.dtypes import dtype

__all__ = ["Gates", "guarded", "normalised", "normalised_gradient", "softplus", "to_heads"]

_LEAST = 1e-10  # added to linear gates
_NORM = 1e-6  # added to squared norms
_LEAST_KEY, _LEAST_SPREAD = 1e-20, 1e-30  # keys below have no direction; no spread is divided by less
_MARGIN = 1 / 32  # of the bound, which roundings use up
_SLIP = 4.0  # roundings that may pass it


def to_heads(xp: Any, x: Any, heads: int) -> Any:
    """(T, H, ...) with every head repeated for the output heads that read it, which are neighbours."""
    return x if x.shape[1] == heads else xp.repeat(x, heads // x.shape[1], axis=1)


def normalised(xp: Any, x: Any, io: str) -> tuple[Any, Any]:
    """Rows of unit length, rounded to the dtype called ``io``, and the factors that made them."""
    factor = 1.0 / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + _NORM)
    return round_through(x * factor, io), factor


def normalised_gradient(xp: Any, grad: Any, row: Any, factor: Any) -> Any:
    """The gradient of what `normalised` was given, from that of its rows."""
    return factor * (grad - row * xp.sum(row * grad, axis=-1, keepdims=True))


def softplus(xp: Any, x: Any) -> Any:
    """``log(1 + exp(x))``, without overflow."""
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def guarded(xp: Any, strength: Any, k: Any, decay: Any, io: str) -> Any:
    """Strengths of erasing (T, H, K) under which no step expands the state, rounded to the dtype called ``io``.

    Erasing at strengths that differ from channel to channel may lengthen a state that the decay does not shorten
    enough. With the squared channels of the key as weights, a step does so where the strengths' spread passes a bound
    that their mean and the largest decay give; there they move towards their mean until it does not, and to the mean
    itself where rounding undoes that.
    """
    weights = k * k
    total = xp.sum(weights, axis=-1, keepdims=True)
    least = xp.full_like(total, _LEAST_KEY)
    slack = 1.0 / xp.maximum(xp.square(xp.max(decay, axis=-1, keepdims=True)), xp.full_like(total, _LEAST))

    def spread(x: Any) -> tuple[Any, Any, Any]:
        mean = xp.sum(weights * x, axis=-1, keepdims=True)
        second = total * xp.sum(weights * x * x, axis=-1, keepdims=True)
        bound = (slack - 1.0) * (1.0 - xp.square(1.0 - mean) / slack)
        return mean, second, xp.maximum(bound, xp.zeros_like(bound))

    mean, second, bound = spread(strength)
    apart = xp.maximum(second - mean * mean, xp.zeros_like(mean))
    unsafe = (total > least) & (apart > bound)
    middle = mean / xp.maximum(total, least)
    share = xp.sqrt((1.0 - _MARGIN) * bound / xp.maximum(apart, xp.full_like(apart, _LEAST_SPREAD)))
    share = xp.clip(share, 0.0, 1.0)
    moved = round_through(xp.where(unsafe, middle + share * (strength - middle), strength), io)
    mean, second, bound = spread(moved)
    slip = _SLIP * 2.0 * dtype(io).unit_roundoff * (second + mean * mean)
    failed = unsafe & (second - mean * mean > bound + slip)
    return xp.where(failed, round_through(mean / xp.maximum(total, least), io) + xp.zeros_like(moved), moved)


@dataclass(frozen=True)
class Gates:
    """Decay and write strength of every token, with what their derivatives need.

    Attributes:
        decay: What the state is multiplied by (T, H, 1) or (T, H, K).
        strength: How much of the error is written (T, H, 1), or erased (T, H, K).
        log_decay: The logarithm of ``decay``; None for linear gates.
        amplitude: ``exp(a_log)`` (H, 1), or 1.
        shifted: The gate plus its bias.
    """

    decay: Any
    strength: Any
    log_decay: Any
    amplitude: Any
    shifted: Any

    @classmethod
    def of(cls, flags: Flags, xp: Any, g: Any, beta: Any, a_log: Any, dt_bias: Any) -> Gates:
        """From the operands: g and beta (T, H, 1) or (T, H, K) each, a_log (H,), dt_bias (H, 1) or (H, K)."""
        strength = sigmoid(xp, beta) if flags.use_beta_sigmoid_in_kernel else beta
        strength = 2.0 * strength if flags.allow_neg_eigval else strength
        if flags.gate_domain == "linear":
            return cls(g + _LEAST, strength, None, 1.0, g)
        if not flags.safe_gate:
            return cls(xp.exp(g), strength, g, 1.0, g)
        amplitude = 1.0 if a_log is None else xp.exp(a_log)[:, None]
        shifted = g if dt_bias is None else g + dt_bias
        if flags.channelwise:
            log_decay = flags.gate_lower_bound * sigmoid(xp, amplitude * shifted)
        else:
            log_decay = -amplitude * softplus(xp, shifted)
        return cls(xp.exp(log_decay), strength, log_decay, amplitude, shifted)

    def gradients(self, flags: Flags, xp: Any, by_decay: Any, by_strength: Any) -> tuple[Any, Any, Any, Any]:
        """``(dg, dbeta, d_a_log, d_dt_bias)`` of what `of` was given, from those of decay and strength."""
        if flags.use_beta_sigmoid_in_kernel:
            factor = 2.0 if flags.allow_neg_eigval else 1.0
            share = self.strength / factor
            by_strength = by_strength * factor * share * (1.0 - share)
        if flags.gate_domain == "linear":
            return by_decay, by_strength, None, None
        by_log = self.decay * by_decay
        if not flags.safe_gate:
            return by_log, by_strength, None, None
        if flags.channelwise:
            share = sigmoid(xp, self.amplitude * self.shifted)
            dz = flags.gate_lower_bound * share * (1.0 - share) * self.amplitude * by_log
            by_amplitude = dz * self.shifted
        else:
            dz = -self.amplitude * sigmoid(xp, self.shifted) * by_log
            by_amplitude = by_log * self.log_decay
        return dz, by_strength, xp.sum(by_amplitude, axis=(0, 2)), xp.sum(dz, axis=0)
