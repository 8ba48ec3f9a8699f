"""The definitions of dense scores with their denominators, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import take, wide
from cudnn_fe.attention.dsa.dense import columns_of, heads_first, over_queries
from cudnn_fe.attention.dsa.indexer.operands import score_rows
from cudnn_fe.attention.dsa.indexer.reference import row_log_sum_exp
from cudnn_fe.attention.dsa.precision import dequantized
from cudnn_fe.attention.pieces import scores

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.dense_scores.op import DenseAttnScore, DenseIndexerScore

__all__ = ["attention", "indexer"]


def _nothing(problem: Any, xp: Any, like: Any, denominator: float) -> tuple[Any, Any]:
    zero = xp.sum(xp.zeros_like(wide(like)))
    out, denom = (xp.broadcast_to(zero, spec.shape) for spec in problem.outputs)
    return xp.full_like(out, float("-inf")), xp.full_like(denom, denominator)


def indexer(problem: DenseIndexerScore, xp: Any, *operands: Any) -> tuple[Any, Any]:
    """The indexer's scores, minus infinity where hidden, and their log-sum-exp.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        *operands: As the problem's, then ``sm_scale``.
    """
    *arrays, sm_scale = operands
    if problem.degenerate:
        return _nothing(problem, xp, arrays[2], float("-inf"))
    q, _, of_queries = score_rows(problem, xp, tuple(arrays), sm_scale)

    def body(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        s, seen = of_queries(at)
        return carry, (s, row_log_sum_exp(xp, s, seen))

    out, denom = over_queries(xp, problem.extents, q, body)[1]
    return out, denom


def attention(problem: DenseAttnScore, xp: Any, *operands: Any) -> tuple[Any, Any]:
    """Attention's probabilities summed over heads, minus infinity where hidden, and the visible ones' sum.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        *operands: As the problem's, then ``softmax_scale``.
    """
    q, k, lse, q_scale, k_scale, first, second, q_padded, k_padded, causal, softmax_scale = operands
    if problem.degenerate:
        return _nothing(problem, xp, lse, 0.0)
    q = heads_first(xp, dequantized(problem.precision, xp, q, q_scale, first, q_padded))
    k = heads_first(xp, dequantized(problem.precision, xp, k, k_scale, second, k_padded))
    lse = heads_first(xp, lse[..., None])
    columns = columns_of(xp, problem.extents, problem.ratio, q, first, second, causal)

    def body(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        p = xp.exp(softmax_scale * scores(xp, take(xp, q, at, 2), k) - take(xp, lse, at, 2))
        p, seen = columns.local(xp, xp.sum(p, axis=1), at)
        denom = xp.sum(xp.where(seen, p, xp.zeros_like(p)), axis=-1)
        return carry, (xp.where(seen, p, xp.full_like(p, float("-inf"))), denom)

    out, denom = over_queries(xp, problem.extents, q, body)[1]
    return out, denom
