"""The ops as torch users write them, for torch.compile to fuse: what the benchmark times the kernels against."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["engram_backward", "engram_forward", "lmsd_backward", "lmsd_forward", "qdq", "rht_amax"]
__all__ += ["rms_silu", "tail", "vision_backward"]

_BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # between the magnitudes of E2M1
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@cache
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


@cache
def _hadamard(device: torch.device) -> Tensor:
    signs = [[(-1.0) ** (row & column).bit_count() / 4 for column in range(16)] for row in range(16)]
    return torch.tensor(signs, device=device)


def rht_amax(x: Tensor, w: Tensor, eps: float, rows: int) -> tuple[Tensor, Tensor]:
    """RMSNorm, Hadamard by matrix product, amax of groups of rows."""
    y = functional.rms_norm(x.float(), x.shape[1:], w.float(), eps)
    z = (y.view(x.shape[0], -1, 16) @ _hadamard(x.device)).view(x.shape)
    return z.to(x.dtype), z.abs().view(-1, rows * x.shape[1]).amax(1)


def rms_silu(x: Tensor, w: Tensor, eps: float, kind: str) -> tuple[Tensor, ...]:
    """RMSNorm and SiLU in one of three formats."""
    z = functional.silu(functional.rms_norm(x.float(), x.shape[1:], w.float(), eps))
    if kind != "float4_e2m1fn":
        return (z.to(getattr(torch, kind)),)
    blocks = z.view(x.shape[0], -1, 16)
    scale = (blocks.abs().amax(2) / 6).clamp_min(2.0**-126)
    codes = _e2m1_codes((blocks / scale[..., None]).view(x.shape[0], -1, 2)).to(torch.uint8)
    return codes[..., 0] | (codes[..., 1] << 4), scale.to(torch.float8_e4m3fn)


def _e2m1_codes(q: Tensor) -> Tensor:
    return torch.bucketize(q.abs(), _constant(_BOUNDARIES, q.device)) + 8 * (q < 0)


def tail(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Adjacent pairs of the last 64 channels turned."""
    turned = x[..., -64:].float().unflatten(-1, (32, 2))
    shape = (x.shape[0], *[1] * (x.ndim - 2), 32)
    a, b, c, s = turned[..., 0], turned[..., 1], cosine.view(shape), sine.view(shape)
    pairs = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2).to(x.dtype)
    return torch.cat((x[..., :-64], pairs), -1)


def qdq(x: Tensor, cache_: Tensor, positions: Tensor, kind: str, group: int, scale_format: str) -> Tensor:
    """Tail RoPE and a round trip through a small format, written back."""
    rows = x.view(x.shape[0], -1, x.shape[-1])
    angles = cache_[positions]
    values = tail(rows, angles[:, :32], angles[:, 32:]).float().unflatten(-1, (-1, group))
    limit = 6.0 if kind == "fp4" else 448.0
    largest = values.abs().amax(-1, keepdim=True)
    if scale_format == "e4m3":
        scale = (largest.clamp_min(6 * 2.0**-9) / 6).clamp_max(448).to(torch.float8_e4m3fn).float()
    else:
        floor = 6 * 2.0**-126 if kind == "fp4" else 1e-4
        scale = torch.exp2(torch.ceil(torch.log2(largest.clamp_min(floor) / limit)))
    q = (values / scale).clamp(-limit, limit)
    if kind == "fp8":
        q = q.to(torch.float8_e4m3fn).float()
    else:
        q = torch.copysign(_constant(_MAGNITUDES, x.device)[_e2m1_codes(q.abs())], q)
    return x.copy_((q * scale).view(x.shape))


def vision_backward(q: Tensor, k: Tensor, v: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Split halves turned back, and everything packed."""

    def back(given: Tensor) -> Tensor:
        a, b = given.float().chunk(2, -1)
        return torch.cat((a * cosine + b * sine, b * cosine - a * sine), -1).to(given.dtype)

    return torch.cat((back(q).flatten(1), back(k).flatten(1), v.flatten(1)), 1)


def engram_forward(x: Tensor, kv: Tensor, w: Tensor, mask: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gate of four streams."""
    wide, key, value = x.float(), kv[:, :20480].view(x.shape).float(), kv[:, None, 20480:].float()
    rx, rk = (torch.rsqrt(given.square().mean(-1) + eps) for given in (wide, key))
    dot = (wide * w * key).sum(-1) * rx * rk / math.sqrt(5120)
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot)) * mask[:, None]
    return (wide + gate[..., None] * value).to(x.dtype), torch.stack((gate, dot, rx, rk), -1)


def engram_backward(x: Tensor, kv: Tensor, w: Tensor, saved: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients, from what the forward saved."""
    wide, key, value, g = x.float(), kv[:, :20480].view(x.shape).float(), kv[:, None, 20480:].float(), grad.float()
    gate, dot, rx, rk = saved.unbind(-1)
    slope = (g * value).sum(-1) * gate * (1 - gate) * 0.5 * dot.abs().rsqrt()
    slope = torch.where(dot.abs() >= 1e-6, slope, 0.0)
    coefficient = (slope * rx * rk / math.sqrt(5120))[..., None]
    of_x, of_key = ((slope * dot * r * r / 5120)[..., None] for r in (rx, rk))
    grad_x = (g + coefficient * w * key - of_x * wide).to(x.dtype)
    grad_key = (coefficient * w * wide - of_key * key).to(x.dtype)
    grad_value = (gate[..., None] * g).sum(1).to(x.dtype)
    return grad_x, torch.cat((grad_key.flatten(1), grad_value), 1), (coefficient * wide * key).sum(0)


def lmsd_forward(x: Tensor, u: Tensor, w: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Without dropout: SiLU of u, x and their product, beside the statistics."""
    wide, gate = x.float(), functional.silu(u.float())
    mean = wide.mean(1, keepdim=True)
    rstd = torch.rsqrt(wide.var(1, correction=0, keepdim=True) + eps)
    normal = (wide - mean) * rstd * w.float() + b.float()
    return torch.cat((gate, wide, normal * gate), 1).to(x.dtype), mean[:, 0], rstd[:, 0]


def lmsd_backward(
    dy: Tensor, x: Tensor, u: Tensor, w: Tensor, b: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Its gradients, from the statistics."""
    of_gate, of_x, of_product = dy.float().chunk(3, 1)
    share = torch.sigmoid(u.float())
    gate = u.float() * share
    slope = share + gate * (1 - share)
    normal = (x.float() - mean[:, None]) * rstd[:, None]
    du = (of_product * (normal * w.float() + b.float()) + of_gate) * slope
    of_norm = of_product * gate
    through = of_norm * w.float()
    rest = through - normal * (through * normal).mean(1, keepdim=True) - through.mean(1, keepdim=True)
    dx = of_x + rest * rstd[:, None]
    return dx.to(x.dtype), du.to(x.dtype), (of_norm * normal).sum(0).to(x.dtype), of_norm.sum(0).to(x.dtype)
