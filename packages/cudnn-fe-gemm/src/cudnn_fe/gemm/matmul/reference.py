"""The definition of the plain batched GEMM, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.gemm.arrays import batched_product

if TYPE_CHECKING:
    from cudnn_fe.gemm.matmul.op import Matmul

__all__ = ["matmul"]


def matmul(problem: Matmul, xp: Any, a: Any, b: Any, alpha: float) -> tuple[Any]:
    """``alpha * A @ B^T`` with float32 sums, rounded once to the problem's dtype."""
    return (astype(alpha * batched_product(xp, a, b), problem.d_dtype.name),)
