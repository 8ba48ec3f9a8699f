"""The definition of the grouped GEMM with a gated activation's derivative, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype, rounded
from cudnn_fe.core.pairs import interleave, split_pairs
from cudnn_fe.grouped.activation import gated_derivative
from cudnn_fe.grouped.groups import grouped_product, groups_of, keep, of_rows, sum_rows
from cudnn_fe.grouped.unfused.reference import empty
from cudnn_fe.grouped.weights import dense_weights

if TYPE_CHECKING:
    from cudnn_fe.grouped.dglu.op import GroupedGemmDglu

__all__ = ["grouped_gemm_dglu"]


def grouped_gemm_dglu(
    problem: GroupedGemmDglu,
    xp: Any,
    a: Any,
    c: Any,
    b: Any,
    offsets: Any,
    alpha: Any,
    beta: Any,
    prob: Any,
    linear_offset: float,
    geglu_alpha: float,
    glu_clamp_max: float,
    glu_clamp_min: float,
) -> tuple[Any, ...]:
    """``(D, dprob, dbias, activation)`` in float32 until the end.

    Args:
        problem: The bound problem; names activation, dtypes and wanted results.
        xp: Array namespace of the operands.
        a: (M, K) gradient.
        c: (M, 2N).
        b: (L, N, K), or addresses.
        offsets: (L,) ends.
        alpha: (L,), applied squared.
        beta: (L,).
        prob: (M,).
        linear_offset: What GeGLU adds to up.
        geglu_alpha: Factor in GeGLU's sigmoid.
        glu_clamp_max: Upper bound of gate and up.
        glu_clamp_min: Lower bound of up.
    """
    if 0 in problem.extents[:2]:
        return empty(xp, problem, a)
    groups = groups_of(xp, offsets, a.shape[0])
    scale = of_rows(xp, groups, alpha)[:, None]
    r = grouped_product(xp, groups, a, dense_weights(problem, xp, b)) * (scale * scale)
    if problem.round_dgrad:
        r = rounded(r, problem.a_tensor.dtype.name)
    pre = keep(xp, groups, astype(c, "float32") * of_rows(xp, groups, beta)[:, None])
    gate, up = split_pairs(xp, pre)
    d_gate, d_up, value = gated_derivative(
        xp, problem.act_func, gate, up, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min
    )
    p = keep(xp, groups, prob)[:, None]
    d = keep(xp, groups, interleave(xp, r * p * d_gate, r * p * d_up))
    dprob = keep(xp, groups, xp.sum(r * value, axis=1))
    dbias = sum_rows(xp, groups, d)[:, :, None] if problem.generate_dbias else xp.reshape(d[:0], (0, d.shape[1], 1))
    again = keep(xp, groups, value * p) if problem.generate_activation else value[:0]
    return astype(d, problem.d_dtype.name), dprob, astype(dbias, "bfloat16"), astype(again, "bfloat16")
