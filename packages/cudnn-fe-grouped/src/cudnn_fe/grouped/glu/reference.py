"""The definition of the grouped GEMM with a gated activation, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.pairs import split_pairs
from cudnn_fe.grouped.activation import gated
from cudnn_fe.grouped.groups import grouped_product, groups_of, keep, of_rows
from cudnn_fe.grouped.unfused.reference import bias_of_rows, empty
from cudnn_fe.grouped.weights import dense_weights

if TYPE_CHECKING:
    from cudnn_fe.grouped.glu.op import GroupedGemmGlu

__all__ = ["grouped_gemm_glu"]


def grouped_gemm_glu(
    problem: GroupedGemmGlu,
    xp: Any,
    a: Any,
    b: Any,
    offsets: Any,
    alpha: Any,
    prob: Any,
    bias: Any,
    linear_offset: float,
) -> tuple[Any, Any]:
    """``(D, C)`` in float32 until the end.

    Args:
        problem: The bound problem; names activation and output dtypes.
        xp: Array namespace of the operands.
        a: (M, K).
        b: (L, N, K), or addresses.
        offsets: (L,) ends.
        alpha: (L,).
        prob: (M,).
        bias: (N, L) or None.
        linear_offset: What GeGLU adds to up.
    """
    if 0 in problem.extents[:2]:
        d, c = empty(xp, problem, a)
        return d, c
    groups = groups_of(xp, offsets, a.shape[0])
    c = grouped_product(xp, groups, a, dense_weights(problem, xp, b)) * of_rows(xp, groups, alpha)[:, None]
    if bias is not None:
        c = c + bias_of_rows(xp, groups, bias)
    c = keep(xp, groups, c)
    gate, up = split_pairs(xp, c)
    d = keep(xp, groups, gated(xp, problem.act_func, gate, up, linear_offset) * prob[:, None])
    return astype(d, problem.d_dtype.name), astype(c if problem.generate_c else c[:0], problem.c_dtype.name)
