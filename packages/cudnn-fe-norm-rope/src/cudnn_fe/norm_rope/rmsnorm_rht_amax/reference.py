"""The definition of RMSNorm + Hadamard + amax, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import hadamard
from cudnn_fe.norm_rope.arrays import maximum_without_nan, to_bfloat16, wide

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import RmsNormRhtAmax

__all__ = ["rmsnorm_rht_amax"]


def rmsnorm_rht_amax(problem: RmsNormRhtAmax, xp: Any, x: Any, w: Any, eps: float) -> tuple[Any, Any]:
    """All in float32; the transform by stages of stride 1, 2, 4, 8; rounded once, after the maximum is taken."""
    m, n = problem.extents
    rows = wide(xp, xp.reshape(x, (m, n)))
    mean_square = xp.sum(rows * rows, axis=1, keepdims=True) / n
    y = rows * (1.0 / xp.sqrt(mean_square + eps)) * wide(xp, xp.reshape(w, (n,)))
    z = hadamard(xp, xp.reshape(y, (-1, 16))) * 0.25
    grouped = xp.reshape(z, (m // problem.rows_per_cta, problem.rows_per_cta * n))
    return xp.reshape(to_bfloat16(z), x.shape), maximum_without_nan(xp, grouped, 1)
