"""Derivatives of grouped GEMMs with activations in float64, by torch's autograd, with bounds of float32's errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cudnn_fe_testkit.scaled_gemm import numbers
from cudnn_fe_testkit.scaled_moe import Case

__all__ = ["activation", "check_amax", "derivative", "kept"]


def kept(case: Case, width: int) -> Any:
    """C of a forward, NaN in rows past the end."""
    c: Any = (2 * np.random.default_rng(9).standard_normal((case.m, width))).astype(np.float32)
    c[~case.inside] = np.nan
    return c


def activation(act: str, c: Any) -> Any:
    """The activation as torch's differentiable operations."""
    if act == "srelu":
        return torch.relu(c) ** 2
    if act.startswith("srelu "):
        s = float(act.removeprefix("srelu "))
        return (s * torch.tanh(torch.relu(c) / s)) ** 2
    gate, up = c.reshape(len(c), -1, 2, 32).unbind(2)
    gate, up = gate.reshape(len(c), -1), up.reshape(len(c), -1)
    if act == "swiglu":
        return torch.sigmoid(gate) * gate * up
    if act == "situglu":
        return 4 * 25 * torch.tanh(gate / 4) * torch.sigmoid(gate) * torch.tanh(up / 25)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return torch.sigmoid(1.702 * gate) * gate * (up + 1)


def derivative(case: Case, act: str, c: Any, *, beta: bool) -> tuple[Any, Any, Any, Any]:
    """D, its error, dprob and its error, in float64."""
    gated = not act.startswith("srelu")
    alpha = case.rows(case.alpha) ** (2 if gated else 1)
    r, e_r = case.s * alpha, case.bound * np.abs(alpha) + 2.0**-22 * np.abs(case.s * alpha)
    scale = case.rows(case.beta) if beta else 1.0
    leaf = torch.tensor(np.nan_to_num(c.astype(np.float64)) * scale * case.inside[:, None], requires_grad=True)
    prob = case.prob.astype(np.float64)[:, None]
    result = activation(act, leaf)
    (steep,) = torch.autograd.grad(result, leaf, torch.ones_like(result))
    found = result.detach().numpy()
    slope: Any = steep.numpy()

    def wide(x: Any) -> Any:
        if not gated:
            return x
        return np.stack((x.reshape(len(x), -1, 32),) * 2, 2).reshape(len(x), -1)

    d = wide(r * prob) * slope
    size = np.abs(leaf.detach().numpy())
    # The derivative's own float32 operations, on values up to a few times the operands' and their products.
    ops = 32 * 2.0**-24 * (1 + size) * (1 + size.max(1, keepdims=True))
    error = wide(np.abs(prob) * e_r) * np.abs(slope) + wide(np.abs(prob * r)) * ops
    dprob = (r * found).sum(1)
    room = (e_r * np.abs(found) + np.abs(r) * 64 * 2.0**-24 * (1 + np.abs(found)) * (1 + size.max())).sum(1)
    return d, error, dprob, room


def check_amax(out: Any, d: Any, case: Case, error: Any) -> None:
    """Asserts that amax is the largest magnitude of each expert's gate and up columns."""
    blocks = np.abs(d * case.inside[:, None]).reshape(len(d), -1, 2, 32)
    begins = np.concatenate(([0], case.ends[:-1]))
    for found, begin, end in zip(numbers(out["amax_tensor"])[..., 0], begins, case.ends, strict=True):
        for which in range(2):
            wanted = blocks[begin:end, :, which].max(initial=-np.inf)
            assert found[which] == wanted or abs(found[which] - wanted) <= error[begin:end].max()
