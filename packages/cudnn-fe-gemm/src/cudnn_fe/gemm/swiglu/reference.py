"""The definition of GEMM + SwiGLU, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.gemm.arrays import batched_product, swiglu

if TYPE_CHECKING:
    from cudnn_fe.gemm.swiglu.op import GemmSwiglu

__all__ = ["gemm_swiglu"]


def gemm_swiglu(problem: GemmSwiglu, xp: Any, a: Any, b: Any, alpha: float) -> tuple[Any, Any]:
    """``(AB12, C)`` of ``S = alpha * A @ B^T``: S, and ``value * gate * sigmoid(gate)``, in float32 until the end.

    Args:
        problem: The bound problem; names the output dtypes.
        xp: Array namespace of the operands.
        a: (M, K, L).
        b: (N, K, L).
        alpha: Scale of the product.
    """
    s = alpha * batched_product(xp, a, b)
    return astype(s, problem.ab12_dtype.name), astype(swiglu(xp, s), problem.c_dtype.name)
