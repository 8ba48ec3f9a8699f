"""The definition of GEMM + SwiGLU of quantised operands, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import cast
from cudnn_fe.gemm.arrays import swiglu
from cudnn_fe.gemm.scaled_arrays import finished, scaled_product

if TYPE_CHECKING:
    from cudnn_fe.gemm.swiglu_scaled.op import GemmSwigluScaled

__all__ = ["gemm_swiglu_scaled"]


def gemm_swiglu_scaled(
    problem: GemmSwigluScaled, xp: Any, a: Any, b: Any, sfa: Any, sfb: Any, norm_const: Any, alpha: float
) -> tuple[Any, Any, Any, Any]:
    """``(AB12, C, scales of C, amax)`` of ``S = alpha * A @ B^T``: S, and SwiGLU of the unrounded S.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        a: (M, K, L) codes.
        b: (N, K, L) codes.
        sfa: Packed scales of A.
        sfb: Packed scales of B.
        norm_const: One element, or None.
        alpha: Scale of the product.
    """
    s = alpha * scaled_product(problem, xp, a, b, sfa, sfb)
    c, amax, scales = finished(problem, xp, swiglu(xp, s), norm_const)
    return cast(s, problem.ab12_dtype, axis=1), c, scales, amax
