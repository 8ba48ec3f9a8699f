"""The two branches of a gated unit in one matrix: alternating blocks of their columns, for any array namespace."""

from __future__ import annotations

from typing import Any

__all__ = ["PAIR_BLOCK", "interleave", "split_pairs"]

PAIR_BLOCK = 32  # columns of the one, then of the other


def split_pairs(xp: Any, x: Any) -> tuple[Any, Any]:
    """The two branches, each (M, W/2, ...), whose blocks of 32 columns alternate in ``x`` (M, W, ...)."""
    m, width, *rest = x.shape
    blocks = xp.reshape(x, (m, width // (2 * PAIR_BLOCK), 2, PAIR_BLOCK, *rest))
    half = (m, width // 2, *rest)
    return xp.reshape(blocks[:, :, 0], half), xp.reshape(blocks[:, :, 1], half)


def interleave(xp: Any, first: Any, second: Any) -> Any:
    """The inverse of `split_pairs`."""
    m, half, *rest = first.shape
    shape = (m, half // PAIR_BLOCK, 1, PAIR_BLOCK, *rest)
    pairs = xp.concat((xp.reshape(first, shape), xp.reshape(second, shape)), axis=2)
    return xp.reshape(pairs, (m, 2 * half, *rest))
