"""Pieces of the references, in array-API style: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

__all__ = ["BLOCK", "astype", "counting", "interleave", "is_jax", "rounded", "sigmoid", "split_pairs"]

BLOCK = 32  # columns of gate, then of up, that alternate


def is_jax(xp: Any) -> bool:
    """Whether the namespace is JAX's, whose arrays do not change and whose loops are traced."""
    return str(xp.__name__) == "jax.numpy"


def astype(x: Any, name: str) -> Any:
    """``x`` in the framework's dtype called ``name``."""
    if hasattr(x, "astype"):
        import ml_dtypes

        return x.astype(getattr(ml_dtypes, name, name))
    import torch  # x is its tensor

    return x.to(getattr(torch, name))


def rounded(x: Any, name: str) -> Any:
    """float32 ``x`` rounded once to the dtype called ``name``, in float32 again."""
    return astype(astype(x, name), "float32")


def counting(xp: Any, count: int, like: Any) -> Any:
    """``0 .. count - 1`` as int32, where ``like`` lives."""
    place = {"device": like.device} if "torch" in xp.__name__ else {}
    return xp.arange(count, dtype=xp.int32, **place)


def sigmoid(xp: Any, x: Any) -> Any:
    """``1 / (1 + exp(-x))`` without overflow for any finite x, NaN for NaN."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


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
