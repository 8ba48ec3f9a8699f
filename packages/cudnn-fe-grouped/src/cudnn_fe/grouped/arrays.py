"""Alternating blocks of gate and up columns, for any array namespace."""

from __future__ import annotations

from typing import Any

__all__ = ["BLOCK", "interleave", "split_pairs"]

BLOCK = 32  # columns of gate, then of up, that alternate


def split_pairs(xp: Any, x: Any) -> tuple[Any, Any]:
    """Gate and up, each (M, W/2), of alternating 32-column blocks of ``x`` (M, W)."""
    m, width = x.shape
    blocks = xp.reshape(x, (m, width // (2 * BLOCK), 2, BLOCK))
    half = (m, width // 2)
    return xp.reshape(blocks[:, :, 0], half), xp.reshape(blocks[:, :, 1], half)


def interleave(xp: Any, gate: Any, up: Any) -> Any:
    """The inverse of `split_pairs`."""
    m, half = gate.shape
    shape = (m, half // BLOCK, 1, BLOCK)
    pairs = xp.concat((xp.reshape(gate, shape), xp.reshape(up, shape)), axis=2)
    return xp.reshape(pairs, (m, 2 * half))
