"""The definition of the gated activation's gradient, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.pairs import interleave, split_pairs
from cudnn_fe.grouped.activation import gated_derivative
from cudnn_fe.grouped.groups import keep, of_rows, owners_of

if TYPE_CHECKING:
    from cudnn_fe.grouped.glu_gradient.op import GluGradient

__all__ = ["glu_gradient"]


def glu_gradient(
    problem: GluGradient,
    xp: Any,
    c: Any,
    dd: Any,
    offsets: Any,
    prob: Any,
    alpha: Any,
    dc: Any,
    linear_offset: float,
) -> tuple[Any, Any]:
    """``(dC, dprob)`` in float32 until the end.

    Args:
        problem: The bound problem; names activation and output dtype.
        xp: Array namespace of the operands.
        c: (M, N).
        dd: (M, N/2).
        offsets: (L,) ends.
        prob: (M,).
        alpha: (L,) or None, which is 1.
        dc: (M, N) or None, which is 0.
        linear_offset: What GeGLU adds to up.
    """
    if 0 in c.shape:
        return astype(c, problem.dtype.name), xp.zeros_like(prob)
    groups = owners_of(xp, offsets, c.shape[0])
    gate, up = split_pairs(xp, keep(xp, groups, astype(c, "float32")))
    d_gate, d_up, value = gated_derivative(xp, problem.act_func, gate, up, linear_offset)
    dd = keep(xp, groups, astype(dd, "float32"))
    weighted = dd * keep(xp, groups, prob)[:, None]
    ds = interleave(xp, weighted * d_gate, weighted * d_up)
    if dc is not None:
        ds = ds + keep(xp, groups, astype(dc, "float32"))
    if alpha is not None:
        ds = keep(xp, groups, ds * of_rows(xp, groups, alpha)[:, None])
    return astype(ds, problem.dtype.name), xp.sum(dd * value, axis=1)
