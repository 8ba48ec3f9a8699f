"""The definition of SwiGLU's derivative, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype, sigmoid
from cudnn_fe.core.pairs import interleave, split_pairs

if TYPE_CHECKING:
    from cudnn_fe.gemm.dswiglu.op import Dswiglu

__all__ = ["dswiglu"]


def dswiglu(problem: Dswiglu, xp: Any, ab12: Any, dc: Any, upstream: Any) -> tuple[Any]:
    """d(AB12) in float32 arithmetic, rounded once.

    ``1 - sigmoid(g)`` is taken as ``sigmoid(-g)``, which keeps its digits for large gates.
    """
    value, gate = split_pairs(xp, astype(ab12, "float32"))
    grad = astype(dc, "float32")
    open_, shut = sigmoid(xp, gate), sigmoid(xp, -gate)
    d_value = grad * (gate * open_)
    d_gate = grad * value * (open_ * (1.0 + gate * shut))
    total = interleave(xp, d_value, d_gate)
    if upstream is not None:
        total = total + astype(upstream, "float32")
    return (astype(total, problem.dtype.name),)
