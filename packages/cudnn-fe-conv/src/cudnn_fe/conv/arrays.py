"""Pieces of the references, in array-API style: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype, sigmoid

__all__ = ["activate", "activation_slope", "arange", "astype", "bits_of", "sigmoid", "zeros", "zeros_like"]


def activate(xp: Any, z: Any, activation: str) -> Any:
    """z, or ``z * sigmoid(z)``."""
    return z * sigmoid(xp, z) if activation == "silu" else z


def activation_slope(xp: Any, z: Any, activation: str) -> Any:
    """The activation's derivative; ``1 - sigmoid(z)`` is taken as ``sigmoid(-z)``, which keeps its digits."""
    if activation != "silu":
        return xp.ones_like(z)
    return sigmoid(xp, z) * (1.0 + z * sigmoid(xp, -z))


def arange(xp: Any, count: int, like: Any) -> Any:
    """Integers from 0 to ``count - 1``, where ``like`` lives."""
    if hasattr(like, "get_device"):  # torch's tensors live in one of several places
        return xp.arange(count, device=like.device)
    return xp.arange(count)


def bits_of(xp: Any, x: Any) -> Any:
    """The elements' bits as integers of their size: on its way, XLA may widen halves, which changes NaNs."""
    return x.view({2: xp.int16, 4: xp.int32, 8: xp.int64}[x.dtype.itemsize])


def zeros(xp: Any, shape: tuple[int, ...], like: Any) -> Any:
    """Zeros of ``like``'s type, where it lives."""
    if hasattr(like, "get_device"):
        return xp.zeros(shape, dtype=like.dtype, device=like.device)
    return xp.zeros(shape, dtype=like.dtype)


def zeros_like(x: Any) -> Any:
    """Zeros in the form of a framework's array."""
    if hasattr(x, "new_zeros"):  # torch: an in-between expression of x would cost a pass over it
        return x.new_zeros(x.shape)
    import jax.numpy as jnp  # x is its array

    return jnp.zeros_like(x)
