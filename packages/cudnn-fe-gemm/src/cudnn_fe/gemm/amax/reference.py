"""The definition of the block-scaled GEMM with amax, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import cast
from cudnn_fe.gemm.scaled_arrays import largest, scaled_product

if TYPE_CHECKING:
    from cudnn_fe.gemm.amax.op import GemmAmax

__all__ = ["gemm_amax"]


def gemm_amax(problem: GemmAmax, xp: Any, a: Any, b: Any, sfa: Any, sfb: Any) -> tuple[Any, Any]:
    """``(C, amax)``: the product of the dequantised operands in float32, rounded once, and its largest magnitude.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        a: (M, K, L) codes.
        b: (N, K, L) codes.
        sfa: Packed scales of A.
        sfb: Packed scales of B.
    """
    c = scaled_product(problem, xp, a, b, sfa, sfb)
    return cast(c, problem.c_dtype, axis=1), largest(xp, c, problem.amax_shape)
