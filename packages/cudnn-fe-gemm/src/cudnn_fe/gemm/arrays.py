"""Pieces of the references, in array-API style: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype, matmul, sigmoid
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.pairs import split_pairs

__all__ = ["batched_product", "swiglu", "widen_fp8"]


def batched_product(xp: Any, a: Any, b: Any) -> Any:
    """``sum_k A[m,k,l] * B[n,k,l]`` as float32 (M, N, L), each product exact or rounded once in float32."""
    left = xp.permute_dims(astype(a, "float32"), (2, 0, 1))
    right = xp.permute_dims(astype(b, "float32"), (2, 1, 0))
    return xp.permute_dims(matmul(xp, left, right), (1, 2, 0))


def swiglu(xp: Any, s: Any) -> Any:
    """``value * (gate * sigmoid(gate))`` of alternating blocks."""
    value, gate = split_pairs(xp, s)
    return value * (gate * sigmoid(xp, gate))


def widen_fp8(x: Any) -> Any:
    """An FP8 array in bfloat16, which holds every E4M3 and E5M2 value exactly; others as they are."""
    return astype(x, "bfloat16") if dtype(x.dtype).is_fp8 else x
