"""Mixture of experts: routings, and the definitions in float64, expert by expert."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ROUTINGS",
    "activation",
    "activation_gradient",
    "ends_of",
    "halves",
    "joined",
    "of_rows",
    "products",
    "sigmoid",
    "sums",
    "weight_gradients",
    "worst_expert",
]

Floats = NDArray[Any]

ROUTINGS = {  # rows of each expert, then rows past the end
    "even": ([8, 8, 8], 0),
    "empty first, middle, last": ([0, 5, 0, 0, 11, 0], 3),
    "one row each": ([1, 1, 1, 1, 1], 0),
    "one expert": ([13], 4),
    "none at all": ([0, 0, 0], 6),
    "uneven": ([1, 130, 0, 7], 2),
}


def ends_of(counts: list[int]) -> NDArray[np.int32]:
    """Offsets of groups of these sizes."""
    return np.cumsum(counts).astype(np.int32)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def halves(c: Floats) -> tuple[Floats, Floats]:
    """Gate and up of alternating 32-column blocks."""
    blocks = c.reshape(len(c), c.shape[1] // 64, 2, 32)
    half = (len(c), c.shape[1] // 2)
    return blocks[:, :, 0].reshape(half), blocks[:, :, 1].reshape(half)


def joined(gate: Floats, up: Floats) -> Floats:
    """The inverse of `halves`."""
    return np.stack((gate.reshape(len(gate), -1, 32), up.reshape(len(up), -1, 32)), 2).reshape(len(gate), -1)


def activation(act: str, c: Floats) -> Floats:
    """SwiGLU or GeGLU with its clamps."""
    gate, up = halves(c)
    if act == "swiglu":
        return sigmoid(gate) * gate * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    value: Floats = sigmoid(1.702 * gate) * gate * (up + 1)
    return value


def activation_gradient(act: str, c: Floats, dd: Floats) -> Floats:
    """Of the sum of ``activation * dd``, by hand."""
    gate, up = halves(c)
    if act == "swiglu":
        s = sigmoid(gate)
        return joined(dd * up * s * (1 + gate * (1 - s)), dd * s * gate)
    g, u = np.minimum(gate, 7), np.clip(up, -7, 7)
    s = sigmoid(1.702 * g)
    d_gate = dd * s * (u + 1) * (1 + 1.702 * g * (1 - s)) * (gate <= 7)
    return joined(d_gate, dd * s * g * (np.abs(up) <= 7))


def products(a: Floats, b: Floats, ends: NDArray[np.int32]) -> Floats:
    """``a[m] @ b[expert of m].T``, zeros past the end."""
    out = np.zeros((len(a), b.shape[1]))
    begin = 0
    for weight, end in zip(b, ends, strict=True):
        out[begin:end] = a[begin:end] @ weight.T
        begin = end
    return out


def of_rows(table: Floats, ends: NDArray[np.int32], m: int) -> Floats:
    """Each row's entry of a table by expert, zeros past the end."""
    owner = np.searchsorted(ends, np.arange(m), side="right")
    full = np.concatenate((table, np.zeros_like(table[:1])))
    rows: Floats = full[owner]
    return rows


def weight_gradients(rows: Floats, a: Floats, ends: NDArray[np.int32]) -> Floats:
    """For each expert ``rows.T @ a`` over its rows."""
    begins = np.concatenate(([0], ends[:-1]))
    return np.stack([rows[b:e].T @ a[b:e] for b, e in zip(begins, ends, strict=True)])


def sums(rows: Floats, ends: NDArray[np.int32]) -> Floats:
    """The sum of each expert's rows."""
    begins = np.concatenate(([0], ends[:-1]))
    return np.stack([rows[b:e].sum(0) for b, e in zip(begins, ends, strict=True)])


def worst_expert(got: Floats, wanted: Floats) -> float:
    """The largest relative RMS error of one expert: an average over experts would hide a wrong one."""
    axes = tuple(range(1, wanted.ndim))
    error = np.sqrt(((got - wanted) ** 2).mean(axes))
    size = np.sqrt((wanted**2).mean(axes))
    assert not got[size == 0].any(), "an expert without rows has a gradient"
    return float((error / np.where(size == 0, 1, size)).max(initial=0.0))
