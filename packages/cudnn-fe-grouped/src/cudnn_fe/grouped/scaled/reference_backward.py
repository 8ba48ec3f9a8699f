"""The definition of the block-scaled grouped GEMMs that go backward, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudnn_fe.core.arrays import astype, cast
from cudnn_fe.core.pairs import interleave, split_pairs
from cudnn_fe.grouped.activation import gated_derivative
from cudnn_fe.grouped.groups import Groups, groups_of, keep, of_rows, sum_rows
from cudnn_fe.grouped.scaled.pieces import (
    column_quantised,
    ends_of,
    finished,
    largest,
    nothing,
    rectified,
    scaled_product,
)
from cudnn_fe.grouped.scaled.reference import clamped_tanh, squared

if TYPE_CHECKING:
    from cudnn_fe.grouped.scaled.backward import ScaledBackward

__all__ = ["scaled_backward"]


def scaled_backward(
    problem: ScaledBackward,
    xp: Any,
    a: Any,
    c: Any,
    b: Any,
    sfa: Any,
    sfb: Any,
    offsets: Any,
    alpha: Any,
    beta: Any,
    prob: Any,
    norm: Any,
    *numbers: float,
) -> tuple[Any, ...]:
    """The results of `ScaledBackward`, float32 until the end.

    Args:
        problem: The bound problem; names activation, dtypes and wanted results.
        xp: Array namespace of the operands.
        a: (M, K) codes of the gradient.
        c: (M, W), what the forward kept.
        b: (L, N, K) codes, or addresses.
        sfa: Packed scales of A, flat.
        sfb: Packed scales of the weights, flat, or addresses.
        offsets: (L,) ends.
        alpha: (L,); a gated activation applies it squared.
        beta: (L,) or None; swiglu and situglu scale C by it.
        prob: (M,) or None, which is 1.
        norm: One element, or None.
        *numbers: Those of a gated activation, see `gated_derivative`; none for others.
    """
    if 0 in problem.extents[:2]:
        return nothing(problem, xp, a)
    ends = ends_of(problem, xp, offsets)
    groups = groups_of(xp, ends, a.shape[0])
    scale = of_rows(xp, groups, alpha)[:, None]
    r = scaled_product(problem, xp, groups, a, b, sfa, sfb) * (scale * scale if problem.gated else scale)
    pre = keep(xp, groups, astype(c, "float32"))
    if beta is not None and problem.epilogue in ("swiglu", "situglu"):
        pre = pre * of_rows(xp, groups, beta)[:, None]
    gate = None if prob is None else keep(xp, groups, astype(prob, "float32"))[:, None]
    if problem.gated:
        d, dprob, amax = _gated(problem, xp, groups, r, pre, gate, numbers)
        again = d[:0]
    else:
        d, dprob, again = _squared_derivative(problem, xp, r, pre, gate)
        amax = largest(xp, groups, d, -np.inf)[:, None]
    d, again = keep(xp, groups, d), keep(xp, groups, again) if not problem.gated else again
    dbias = sum_rows(xp, groups, d)[:, :, None] if problem.generate_dbias else xp.reshape(d[:0], (0, d.shape[1], 1))
    row, column, amax, by_rows, by_columns = finished(problem, xp, groups, d, norm, ends, "epilogue_columns", amax)
    if problem.quantised and not problem.gated:
        again, again_scales = column_quantised(
            xp, again, problem.d_dtype, norm, ends, "epilogue_columns", by_expert=problem.expert_columns
        )
    else:
        again, again_scales = cast(again, problem.d_dtype), xp.reshape(by_rows, (-1,))[:0]
    return (
        row,
        column,
        again,
        keep(xp, groups, dprob),
        astype(dbias, "bfloat16"),
        amax,
        by_rows,
        by_columns,
        again_scales,
    )


def _gated(
    problem: ScaledBackward, xp: Any, groups: Groups, r: Any, pre: Any, gate: Any, numbers: tuple[float, ...]
) -> tuple[Any, Any, Any]:
    """D, dprob and amax (L, 2, 1) of the gate's and of the up columns."""
    d_gate, d_up, value = gated_derivative(xp, problem.epilogue, *split_pairs(xp, pre), *numbers)
    weighted = r if gate is None else r * gate
    left, right = keep(xp, groups, weighted * d_gate), keep(xp, groups, weighted * d_up)
    amax = xp.stack([largest(xp, groups, x, -np.inf) for x in (left, right)], axis=1)[:, :, None]
    return interleave(xp, left, right), xp.sum(r * value, axis=1), amax


def _squared_derivative(problem: ScaledBackward, xp: Any, g: Any, c: Any, gate: Any) -> tuple[Any, Any, Any]:
    """D, dprob and the activation again."""
    scale = problem.tanh_clamp_scale
    again = squared(xp, c, scale, gate)
    if scale is None:
        r = rectified(xp, c)
        d = (r * g) * (2.0 if gate is None else 2.0 * gate)
        return d, xp.sum(r * r * g, axis=1), again
    t, twice, square = clamped_tanh(xp, c, scale), float(np.float32(2.0 * scale)), float(np.float32(scale * scale))
    t2 = t * t
    d = g * (twice if gate is None else gate * twice) * (t - t2 * t)
    return d, xp.sum(t2 * g, axis=1) * square, again
