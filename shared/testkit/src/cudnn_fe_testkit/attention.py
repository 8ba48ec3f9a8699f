"""Dense float64 attention with an explicit mask, which every attention op is measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudnn_fe.core.dtypes import dtype
from cudnn_fe_testkit.compare import to_float64

__all__ = ["assert_slopes", "attention_tolerance", "block_mask", "dense", "double"]


def double(x: Any) -> torch.Tensor:
    """The values of an array of any framework as a float64 tensor of its own."""
    return torch.from_numpy(to_float64(x).copy())


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(O, LSE)`` of (B, H, S, D) operands where ``mask`` (B, H, Sq, Sk) is true, by torch's own softmax.

    Rows that see nothing give 0 and minus infinity. Differentiable.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("bhmd,bhnd->bhmn", q, k) * scale
    alive = mask.any(-1, keepdim=True)
    s = s.masked_fill(~mask, float("-inf")).masked_fill(~alive, 0.0)
    p = torch.softmax(s, -1).masked_fill(~mask, 0.0)
    lse = torch.logsumexp(s, -1).masked_fill(~alive[..., 0], float("-inf"))
    return torch.einsum("bhmn,bhnd->bhmd", p, v), lse


def block_mask(
    lists: list[Any], counts: Any, sizes: Any, *, block: int, queries: int, keys: int, heads: int
) -> torch.Tensor:
    """The mask (B, heads, Sq, Sk) of lists of key blocks, one loop per dim, as the definition says it.

    Args:
        lists: Nested (B, heads, query blocks, capacity) ids.
        counts: Nested (B, heads, query blocks) entries of each list, or one number for all.
        sizes: Function from batch, head and key block to the block's valid tokens.
        block: Tokens of a block.
        queries: Sq.
        keys: Sk.
        heads: Heads that have lists.
    """
    mask = torch.zeros(len(lists), heads, queries, keys, dtype=torch.bool)
    for b in range(len(lists)):
        for h in range(heads):
            for i in range(queries):
                row = lists[b][h][i // block]
                count = counts if isinstance(counts, int) else counts[b][h][i // block]
                for j in row[:count]:
                    end = min(j * block + min(block, sizes(b, h, j)), keys)
                    mask[b, h, i, j * block : end] = True
    return mask


def assert_slopes(
    loss: Callable[[dict[str, torch.Tensor]], torch.Tensor], at: dict[str, torch.Tensor], grads: dict[str, Any]
) -> None:
    """Raises unless each gradient is the slope that central differences find along a direction of its input.

    Args:
        loss: A number of all inputs, in float64.
        at: The inputs, by name.
        grads: The gradient of each input that has one.
    """
    step = 1e-6  # an error of its square, and of the sum's roundings divided by it
    for name, grad in grads.items():
        direction = torch.randn(at[name].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad():
            ahead, behind = (float(loss({**at, name: at[name] + s * direction})) for s in (step, -step))
        slope, expected = float((double(grad) * direction).sum()), (ahead - behind) / (2 * step)
        assert abs(slope - expected) <= 1e-6 * max(abs(expected), 1.0), f"{name}: {slope}, wanted {expected}"
        assert slope != 0, name


def attention_tolerance(kind: Any, roundings: int, terms: int = 1) -> float:
    """Bound of the relative RMS error: roundings to ``kind`` on the way, and float32 sums of ``terms``.

    Each rounding is one unit roundoff of what it rounds. The output counts as one, P or dS as another, and the O that
    the backward's row sums are made of as another.
    """
    given = dtype(kind)
    unit = 2.0**-53 if given.name == "float64" else 2.0**-24
    return float(roundings * given.unit_roundoff + 4 * unit * max(terms, 1) ** 0.5)
