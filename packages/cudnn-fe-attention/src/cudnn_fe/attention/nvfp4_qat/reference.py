"""The definition of the gradients of attention trained with NVFP4 operands, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import narrow, round_through, take, wide
from cudnn_fe.attention.fake_quant import nvfp4_values
from cudnn_fe.attention.pieces import pull_back
from cudnn_fe.attention.tiles import Tile

if TYPE_CHECKING:
    from cudnn_fe.attention.nvfp4_qat.op import Nvfp4AttentionQat

__all__ = ["backward"]


def backward(
    problem: Nvfp4AttentionQat, xp: Any, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float
) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)`` straight through the quantisation of Q, K, V and P.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        do: Gradient of the output (B, H, Sq, D).
        q: Queries.
        k: Keys.
        v: Values.
        o: The output before probabilities were quantised.
        lse: Its log-sum-exp (B, H, Sq).
        scale: Factor of the scores.
    """
    io = problem.q_tensor.dtype.name
    do, o = wide(do), wide(o)
    q, k, v = (nvfp4_values(xp, wide(x)) for x in (q, k, v))
    delta = xp.sum(o * do, axis=-1)
    base = xp.where(lse == float("-inf"), xp.zeros_like(lse), lse)

    def visible(queries: Any) -> Any:
        if problem.is_causal:
            return lambda keys: keys <= queries[:, None]
        return lambda keys: (keys >= 0) & (queries[:, None] >= 0)

    def weights(x: Any, dp: Any, tile: Tile) -> tuple[Any, Any]:
        p = xp.exp(scale * x - take(xp, base, tile.queries, 2)[..., None])
        p = tile.only(xp, p)  # what is hidden takes no part in a group's scale
        ds = p * (dp - take(xp, delta, tile.queries, 2)[..., None])
        return nvfp4_values(xp, p), round_through(ds, io)

    dq, dk, dv = pull_back(xp, do, q, k, v, visible, weights)
    return narrow(scale * dq, io), narrow(scale * dk, io), narrow(dv, io)
