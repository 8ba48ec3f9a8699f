"""The definition of the hyper-connections' projection gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.codecs import round_to_tf32, to_bfloat16
from cudnn_fe.gemm.arrays import batched_product

if TYPE_CHECKING:
    from cudnn_fe.gemm.mhc_projection.op import MhcProjection

__all__ = ["mhc_projection"]


def mhc_projection(
    problem: MhcProjection, xp: Any, x: Any, weight: Any, grad_proj: Any, grad_r: Any, r: Any
) -> tuple[Any, Any]:
    """``(dx, dweight)`` in float32 arithmetic with TF32 factors; dx is rounded once.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: (M, K).
        weight: (n, K).
        grad_proj: (M, at least n).
        grad_r: (M, 1).
        r: (M, 1).
    """
    n, k = problem.weight.shape
    wide = astype(x, "float32")
    p, w = round_to_tf32(grad_proj[:, :n]), round_to_tf32(weight)

    def product(a: Any, b: Any) -> Any:
        return batched_product(xp, a[:, :, None], b[:, :, None])[:, :, 0]

    along_r = grad_r * (1.0 / (r * float(k)))
    dx = along_r * wide + product(p, xp.permute_dims(w, (1, 0)))
    dweight = product(xp.permute_dims(p, (1, 0)), xp.permute_dims(wide, (1, 0)))
    return to_bfloat16(dx), dweight
