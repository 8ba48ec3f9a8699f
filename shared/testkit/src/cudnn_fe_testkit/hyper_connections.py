"""Operands of the hyper-connections' gradients, and the gradients in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

__all__ = ["NAMES", "case", "exact", "tensor"]

NAMES = ("x", "weight", "grad_proj", "grad_r", "r")


def case(m: int, k: int, n: int) -> dict[str, Any]:
    """Normal values; columns of grad_proj that are not read are NaN."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    grad_proj = np.full((m, max(n + 8, 32)), np.nan, np.float32)
    grad_proj[:, :n] = rng.standard_normal((m, n))
    return {
        "x": x,
        "weight": rng.standard_normal((n, k)).astype(np.float32),
        "grad_proj": grad_proj,
        "grad_r": rng.standard_normal((m, 1)).astype(np.float32),
        "r": np.sqrt((x.astype(np.float32) ** 2).sum(1, keepdims=True) / max(k, 1)),
    }


def tensor(x: Any) -> torch.Tensor:
    """A NumPy array as a torch tensor."""
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else torch.tensor(x)


def exact(given: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Both gradients by torch's autograd in float64, with the sums of their terms' magnitudes."""
    x, weight, grad_proj, grad_r, r = (torch.tensor(given[name].astype(np.float64)) for name in NAMES)
    p = grad_proj[:, : weight.shape[0]]
    x.requires_grad_()
    weight.requires_grad_()
    (x @ weight.T).backward(p)
    along_r = grad_r * x.detach() / (x.shape[1] * r)
    assert x.grad is not None
    assert weight.grad is not None
    dx_size = along_r.abs() + p.abs() @ weight.detach().abs()
    dw_size = p.abs().T @ x.detach().abs()
    return (x.grad + along_r).numpy(), weight.grad.numpy(), dx_size.numpy(), dw_size.numpy()
