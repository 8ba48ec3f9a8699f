"""The definition of the squared-ReLU GEMM's derivative, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.gemm.scaled_arrays import finished, scaled_product
from cudnn_fe.gemm.srelu.reference import rectified

if TYPE_CHECKING:
    from cudnn_fe.gemm.dsrelu.op import GemmDsrelu

__all__ = ["gemm_dsrelu"]


def gemm_dsrelu(
    problem: GemmDsrelu, xp: Any, a: Any, b: Any, sfa: Any, sfb: Any, c: Any, prob: Any, norm_const: Any, alpha: float
) -> tuple[Any, Any, Any, Any]:
    """``(D, dprob, amax, scales of D)``: gradients of ``prob * relu(S)**2`` with respect to S and prob.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        a: (M, K, L) codes.
        b: (N, K, L) codes.
        sfa: Packed scales of A.
        sfb: Packed scales of B.
        c: (M, N, L), the gradient of the activation.
        prob: (M, 1, L).
        norm_const: One element, or None.
        alpha: Scale of the product.
    """
    gradient = astype(c, "float32")
    r = rectified(xp, alpha * scaled_product(problem, xp, a, b, sfa, sfb))
    dprob = xp.sum((r * r) * gradient, axis=1, keepdims=True)
    d, amax, scales = finished(problem, xp, (r * 2.0) * (gradient * prob), norm_const)
    return d, dprob, amax, scales
