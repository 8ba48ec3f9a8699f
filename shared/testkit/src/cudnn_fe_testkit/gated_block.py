"""Operands of gated attention blocks, and the block step by step in float64, without any rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cudnn_fe_testkit.compare import to_float64
from cudnn_fe_testkit.inputs import normal

__all__ = ["NAMES", "block_operands", "exact_block", "exact_masked_block", "indexer_lists", "rotate"]

NAMES = ("h", "w_qkvg", "w_q_norm", "w_k_norm", "cos", "sin", "w_o")


def block_operands(g: Any, kind: str = "float32", lead: tuple[int, ...] = (2, 9)) -> dict[str, Any]:
    """Random operands; tables whose halves differ, so that the adjoint of RoPE is told from its inverse."""
    shapes = {
        "h": (*lead, g.d_model),
        "w_qkvg": (g.n_qkvg, g.d_model),
        "w_q_norm": (g.d_head,),
        "w_k_norm": (g.d_head,),
        "cos": (*lead, g.rope_dim),
        "sin": (*lead, g.rope_dim),
        "w_o": (g.d_model, g.h_q * g.d_head),
    }
    scales = {"w_qkvg": g.d_model**-0.5, "w_o": (g.h_q * g.d_head) ** -0.5}
    made = {n: normal(s, kind, seed=i, scale=scales.get(n, 1.0)) for i, (n, s) in enumerate(shapes.items())}
    return made if g.qk_norm else {n: None if n.endswith("norm") else x for n, x in made.items()}


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, width: int) -> torch.Tensor:
    """RoPE of the leading ``width`` channels of (B, S, H, D), with tables (B, S, width)."""
    lead, rest = x[..., :width], x[..., width:]
    half = width // 2
    swapped = torch.cat([-lead[..., half:], lead[..., :half]], -1)
    return torch.cat([lead * cos[:, :, None] + swapped * sin[:, :, None], rest], -1)


def exact_block(
    g: Any, t: dict[str, Any], lengths: Any = None, packed: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)``, the page's steps one after the other without any rounding."""
    h = t["h"] if t["h"].ndim == 3 else t["h"][None]
    cos, sin = (x if x.ndim == 3 else x[None] for x in (t["cos"], t["sin"]))
    batch, tokens, _ = h.shape
    projected = h @ t["w_qkvg"].T
    widths = [g.h_q * g.d_head] * 2 + [g.h_kv * g.d_head] * 2
    q, gate, k, v = (x.reshape(batch, tokens, -1, g.d_head) for x in projected.split(widths, -1))
    if g.qk_norm:
        q, k = (
            x / (x.square().mean(-1, keepdim=True) + g.qk_norm_eps).sqrt() * w
            for x, w in ((q, t["w_q_norm"]), (k, t["w_k_norm"]))
        )
    q, k = (rotate(x, cos, sin, g.rope_dim) for x in (q, k))
    k, v = (x.repeat_interleave(g.h_q // g.h_kv, 2) for x in (k, v))
    mask = torch.zeros(batch, 1, tokens, tokens, dtype=torch.bool)
    for b, _, i, j in np.ndindex(*mask.shape):
        seen = not g.is_causal or j <= i + max(g.window_right, 0)
        seen = seen and (g.window_left < 0 or j >= i - g.window_left)
        seen = seen and (lengths is None or j < lengths[b])
        mask[b, 0, i, j] = bool(seen) and (packed is None or any(a <= i < e and a <= j < e for a, e in packed))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (g.attn_scale or g.d_head**-0.5)
    s = s.masked_fill(~mask, float("-inf"))
    alive = mask.any(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(~alive, 0.0), -1) * alive
    o = torch.einsum("bhij,bjhd->bihd", p, v)
    out = (o * torch.sigmoid(gate)).reshape(batch, tokens, -1) @ t["w_o"].T
    return out.reshape(t["h"].shape), torch.logsumexp(s, -1)


def exact_masked_block(g: Any, t: dict[str, Any], mask: torch.Tensor) -> tuple[Any, Any]:
    """``(out, lse)`` in float64 of tokens in one row (T, ...) that see what the mask (T, T) says."""
    tokens = len(t["h"])
    x = {n: torch.from_numpy(to_float64(y)) for n, y in t.items()}
    widths = [g.h_q * g.d_head] * 2 + [g.h_kv * g.d_head] * 2
    projected = (x["h"] @ x["w_qkvg"].T)[:, : sum(widths)]
    q, gate, k, v = (y.reshape(1, tokens, -1, g.d_head) for y in projected.split(widths, -1))
    q, k = (
        y / (y.square().mean(-1, keepdim=True) + g.qk_norm_eps).sqrt() * x[n]
        for y, n in ((q, "w_q_norm"), (k, "w_k_norm"))
    )
    q, k = (rotate(y, x["cos"][None], x["sin"][None], g.rope_dim) for y in (q, k))
    k, v = (y.repeat_interleave(g.h_q // g.h_kv, 2) for y in (k, v))
    s = (torch.einsum("bihd,bjhd->bhij", q, k) * g.d_head**-0.5).masked_fill(~mask, float("-inf"))
    alive = mask.any(-1, keepdim=True)
    o = torch.einsum("bhij,bjhd->bihd", torch.softmax(s.masked_fill(~alive, 0.0), -1) * alive, v)
    out = (o * torch.sigmoid(gate)).reshape(tokens, -1) @ x["w_o"].T
    return out, torch.logsumexp(s, -1)[0]


def indexer_lists(g: Any, t: dict[str, Any], norms: tuple[Any, Any], spans: list[tuple[int, int]]) -> tuple[Any, Any]:
    """The best blocks of every token, and the compressed keys by span, in float64."""
    x = {n: torch.from_numpy(to_float64(y)) for n, y in t.items()}
    w_q, w_k = (torch.from_numpy(to_float64(y)) for y in norms)
    qsa, width = g.qsa, g.qsa.index_head_dim
    band = (x["h"] @ x["w_qkvg"].T)[:, -qsa.index_band_cols :].reshape(len(x["h"]), -1, width)

    def rms(y: Any, w: Any) -> Any:
        return y / (y.square().mean(-1, keepdim=True) + qsa.index_norm_eps).sqrt() * w

    query = rotate(rms(band[:, :-1], w_q)[None], x["cos"][None], x["sin"][None], g.rope_dim)[0]
    lists: list[list[int]] = [[] for _ in range(len(query))]
    compressed = []
    for start, end in spans:
        blocks = (end - start) // 4
        mean = (
            torch.stack([band[start + 4 * b : start + 4 * b + 4, -1].mean(0) for b in range(blocks)])
            if blocks
            else torch.zeros(0, width)
        )
        at = torch.arange(blocks) * 4 + start
        key = rotate(rms(mean, w_k)[None, :, None], x["cos"][at][None], x["sin"][at][None], g.rope_dim)[0, :, 0]
        compressed.append(key)
        score = torch.relu(torch.einsum("thd,bd->thb", query[start:end], key)).sum(1) * width**-0.5
        for p in range(end - start):
            ranked = sorted(range((p + 1) // 4), key=lambda b, p=p: (-float(score[p, b]), b))  # type: ignore[misc]
            lists[start + p] = sorted(ranked[: qsa.top_k])
    return lists, compressed
