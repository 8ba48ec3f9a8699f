"""Pieces of the references, in array-API style: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype, sigmoid
from cudnn_fe.core.dtypes import dtype

__all__ = ["astype", "batched_product", "interleave", "sigmoid", "split_pairs", "swiglu", "widen_fp8"]

BLOCK = 32


def batched_product(xp: Any, a: Any, b: Any) -> Any:
    """``sum_k A[m,k,l] * B[n,k,l]`` as float32 (M, N, L), each product exact or rounded once in float32."""
    left = xp.permute_dims(astype(a, "float32"), (2, 0, 1))
    right = xp.permute_dims(astype(b, "float32"), (2, 1, 0))
    # JAX multiplies float32 with fewer bits on some platforms unless told not to.
    options = {"precision": "highest"} if xp.__name__ == "jax.numpy" else {}
    product = xp.matmul(left, right, **options)
    return xp.permute_dims(product, (1, 2, 0))


def split_pairs(xp: Any, s: Any) -> tuple[Any, Any]:
    """Value and gate, each (M, N/2, L), of alternating 32-column blocks of ``s`` (M, N, L)."""
    m, n, batch = s.shape
    blocks = xp.reshape(s, (m, n // (2 * BLOCK), 2, BLOCK, batch))
    half = (m, n // 2, batch)
    return xp.reshape(blocks[:, :, 0], half), xp.reshape(blocks[:, :, 1], half)


def interleave(xp: Any, value: Any, gate: Any) -> Any:
    """The inverse of `split_pairs`."""
    m, half, batch = value.shape
    shape = (m, half // BLOCK, 1, BLOCK, batch)
    pairs = xp.concat((xp.reshape(value, shape), xp.reshape(gate, shape)), axis=2)
    return xp.reshape(pairs, (m, 2 * half, batch))


def swiglu(xp: Any, s: Any) -> Any:
    """``value * (gate * sigmoid(gate))`` of alternating blocks."""
    value, gate = split_pairs(xp, s)
    return value * (gate * sigmoid(xp, gate))


def widen_fp8(x: Any) -> Any:
    """An FP8 array in bfloat16, which holds every E4M3 and E5M2 value exactly; others as they are."""
    return astype(x, "bfloat16") if dtype(x.dtype).is_fp8 else x
