"""Mixtures of experts in torch: the router, and the way of the rows to their experts and back. Both models share it;
what an expert computes goes through this project's ops in one of them, and through plain torch ops in the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cudnn._cli.demo.config import CHOSEN
from cudnn._cli.demo.weights import MixtureLayer
from cudnn_fe import grouped

__all__ = ["Experts", "experts_by_op", "experts_by_torch", "mixture"]

# (rows by expert, ends of the experts' rows, up and gate weights, down weights, gate of each row) to rows
Experts = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def experts_by_op(rows: Tensor, ends: Tensor, up_gate: Tensor, down: Tensor, gates: Tensor) -> Tensor:
    """Each row through its expert's MLP, times its gate, by this project's ops."""
    one, plain = torch.ones_like(ends, dtype=torch.float32), torch.ones_like(gates)
    hidden = grouped.grouped_gemm_glu_forward(
        rows, None, ends, one, up_gate, prob_tensor=plain, d_dtype=rows.dtype, c_dtype=torch.float32
    )
    result = grouped.grouped_gemm_forward(hidden["d_tensor"], ends, one, down, prob_tensor=gates, d_dtype=rows.dtype)
    weighted: Tensor = result["d_tensor"]
    return weighted


def experts_by_torch(rows: Tensor, ends: Tensor, up_gate: Tensor, down: Tensor, gates: Tensor) -> Tensor:
    """The same in plain torch ops, expert after expert; the host waits to know how many rows each has."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    parts = []
    for part, first, second in zip(rows.split(counts), up_gate, down, strict=True):
        gate, up = (part @ first.T).float().unflatten(1, (-1, 2, 32)).unbind(2)
        parts.append((F.silu(gate) * up).flatten(1).to(rows.dtype) @ second.T)
    return (torch.cat(parts).float() * gates[:, None]).to(rows.dtype)


def mixture(
    x: Tensor, layer: MixtureLayer[Tensor], compute: torch.dtype, experts: Experts, chosen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """A block's experts on (rows, width).

    Args:
        x: The rows.
        layer: The block's weights.
        compute: Element type of the experts' operands.
        experts: What computes them.
        chosen: (rows, `CHOSEN`) experts, or None for those that the router likes best.

    Returns:
        The result; the loss that is least when experts get equally many rows; the experts chosen.
    """
    likings = torch.softmax(x.float() @ layer.router.T, dim=1)
    if chosen is None:
        chosen = likings.topk(CHOSEN, dim=1).indices
    gates = likings.gather(1, chosen)
    gates = gates / gates.sum(dim=1, keepdim=True)
    count = layer.router.shape[0]
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    ends = torch.searchsorted(flat[order], torch.arange(count, device=x.device), right=True).int()
    rows = x.to(compute).repeat_interleave(CHOSEN, dim=0)[order]
    y = experts(rows, ends, layer.up_gate.to(compute), layer.down.to(compute), gates.flatten()[order])
    combined = y[torch.argsort(order)].view(len(x), CHOSEN, -1).float().sum(dim=1)
    share = torch.diff(ends, prepend=ends.new_zeros(1)) / flat.numel()
    return combined, count * (share * likings.mean(dim=0)).sum(), chosen
