"""The definition of the block-scaled GEMM with squared ReLU, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import cast
from cudnn_fe.gemm.scaled_arrays import finished, scaled_product

if TYPE_CHECKING:
    from cudnn_fe.gemm.srelu.op import GemmSrelu

__all__ = ["gemm_srelu", "rectified"]


def gemm_srelu(
    problem: GemmSrelu, xp: Any, a: Any, b: Any, sfa: Any, sfb: Any, prob: Any, norm_const: Any, alpha: float
) -> tuple[Any, Any, Any, Any]:
    """``(C, D, amax, scales of D)`` of ``S = alpha * A @ B^T``: S, and ``prob * relu(S)**2`` from the unrounded S.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        a: (M, K, L) codes.
        b: (N, K, L) codes.
        sfa: Packed scales of A.
        sfb: Packed scales of B.
        prob: (M, 1, L).
        norm_const: One element, or None.
        alpha: Scale of the product.
    """
    s = alpha * scaled_product(problem, xp, a, b, sfa, sfb)
    r = rectified(xp, s)
    return cast(s, problem.c_dtype, axis=1), *finished(problem, xp, (r * r) * prob, norm_const)


def rectified(xp: Any, s: Any) -> Any:
    """``max(s, 0)`` with NaN kept."""
    return xp.where(s <= 0, xp.zeros_like(s), s)
