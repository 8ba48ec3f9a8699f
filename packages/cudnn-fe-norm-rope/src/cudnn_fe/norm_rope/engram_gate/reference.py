"""The definition of the engram gate and its gradients, for any array namespace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cudnn_fe.norm_rope.arrays import to_bfloat16, wide

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.engram_gate.op import EngramGateBackward, EngramGateForward

__all__ = ["backward", "forward"]

STREAMS, CHANNELS = 4, 5120
_ROOT = 1.0 / math.sqrt(CHANNELS)
_LEAST = 1e-6


def _split(xp: Any, kv: Any) -> tuple[Any, Any]:
    """Keys (N, 4, D) and value (N, 1, D)."""
    parts = wide(xp, xp.reshape(kv, (kv.shape[0], STREAMS + 1, CHANNELS)))
    return parts[:, :STREAMS], parts[:, STREAMS:]


def forward(
    problem: EngramGateForward, xp: Any, x: Any, kv: Any, weight: Any, token_mask: Any, eps: float
) -> tuple[Any, Any]:
    """In float32; the streams are rounded once, at the end."""
    streams = wide(xp, x)
    keys, value = _split(xp, kv)
    rx = 1.0 / xp.sqrt(xp.sum(streams * streams, axis=2) * (1.0 / CHANNELS) + eps)
    rk = 1.0 / xp.sqrt(xp.sum(keys * keys, axis=2) * (1.0 / CHANNELS) + eps)
    dot = xp.sum(streams * weight * keys, axis=2) * (rx * rk) * _ROOT
    size = xp.abs(dot)
    root = xp.sqrt(xp.where(size < _LEAST, xp.full_like(size, _LEAST), size))
    # The sign of a zero counts too.
    negative = (dot.view(xp.int32) < 0) & ~xp.isnan(dot)
    gate = 1.0 / (1.0 + xp.exp(xp.where(negative, root, -root)))
    gate = xp.where(token_mask[:, None], gate, xp.zeros_like(gate))
    added = to_bfloat16(streams + gate[:, :, None] * value)
    return xp.where((gate == 0)[:, :, None], x, added), xp.stack((gate, dot, rx, rk), axis=2)


def backward(
    problem: EngramGateBackward, xp: Any, x: Any, kv: Any, weight: Any, saved: Any, grad_out: Any
) -> tuple[Any, Any, Any]:
    """In float32, each gradient rounded once; streams are added in their order."""
    streams, g = wide(xp, x), wide(xp, grad_out)
    keys, value = _split(xp, kv)
    gate, dot, rx, rk = (saved[:, :, index] for index in range(4))
    size = xp.abs(dot)
    zero = xp.zeros_like(gate)
    slope = xp.sum(g * value, axis=2) * gate * (1.0 - gate) * (0.5 / xp.sqrt(size))
    slope = xp.where((size < _LEAST) | (gate == 0), zero, slope)
    shut = (slope == 0)[:, :, None]
    coefficient = (slope * rx * rk * _ROOT)[:, :, None]
    of_x = (slope * dot * (rx * rx) / CHANNELS)[:, :, None]
    of_key = (slope * dot * (rk * rk) / CHANNELS)[:, :, None]
    scaled = coefficient * weight
    grad_x = xp.where(shut, grad_out, to_bfloat16(g + scaled * keys - of_x * streams))
    grad_keys = xp.where(shut, xp.zeros_like(streams), scaled * streams - of_key * keys)
    shares = xp.where((gate == 0)[:, :, None], xp.zeros_like(g), gate[:, :, None] * g)
    grad_value = shares[:, 0] + shares[:, 1] + shares[:, 2] + shares[:, 3]
    grad_kv = to_bfloat16(xp.concat((grad_keys, grad_value[:, None]), axis=1))
    products = xp.where(shut, xp.zeros_like(streams), coefficient * streams * keys)
    return grad_x, xp.reshape(grad_kv, kv.shape), xp.sum(products, axis=0)
