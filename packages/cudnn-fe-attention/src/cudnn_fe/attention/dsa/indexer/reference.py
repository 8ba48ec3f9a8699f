"""The definition of the indexer's dense scores and of its top-k, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import take, wide
from cudnn_fe.attention.dsa.dense import over_queries
from cudnn_fe.attention.dsa.indexer.operands import score_rows
from cudnn_fe.attention.pieces import log_sum_exp
from cudnn_fe.attention.rows import list_softmax
from cudnn_fe.attention.top_k import best_first, float_order

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.indexer.op import IndexerForward, IndexerTopKForward

__all__ = ["dense_scores", "fused_top_k", "row_log_sum_exp"]


def row_log_sum_exp(xp: Any, s: Any, seen: Any) -> Any:
    """Natural log-sum-exp of each row's visible scores, minus infinity where there are none."""
    _, top, total = list_softmax(xp, s, seen)
    return log_sum_exp(xp, top, total)[..., 0]


def _full(xp: Any, problem: Any, shape: tuple[int, ...], value: float) -> Any:
    zero = xp.sum(xp.zeros_like(wide(problem)))
    return xp.full_like(xp.broadcast_to(zero, shape), value)


def dense_scores(problem: IndexerForward, xp: Any, *operands: Any) -> tuple[Any, ...]:
    """The scores, minus infinity where hidden, and their log-sum-exp where asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        *operands: As the problem's, then ``sm_scale``.
    """
    *arrays, sm_scale = operands
    if problem.degenerate:
        return tuple(_full(xp, arrays[2], spec.shape, float("-inf")) for spec in problem.outputs)
    q, _, of_queries = score_rows(problem, xp, tuple(arrays), sm_scale)

    def body(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        s, seen = of_queries(at)
        return carry, (s, row_log_sum_exp(xp, s, seen)) if problem.return_lse else (s,)

    return over_queries(xp, problem.extents, q, body)[1]


def fused_top_k(problem: IndexerTopKForward, xp: Any, *operands: Any) -> tuple[Any, ...]:
    """Ids and scores of the best keys, the scores' softmax and the log-sum-exp of all, as far as asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        *operands: As the problem's, then ``sm_scale``.
    """
    *arrays, sm_scale = operands
    wanted = [name for name, there in (("softmax", problem.return_softmax), ("lse", problem.return_lse)) if there]
    if problem.degenerate:
        lead, nothing = problem.extents.lead, float("-inf")
        logits = _full(xp, arrays[2], (*lead, problem.top_k), nothing)
        indices = xp.full_like(xp.astype(xp.zeros_like(logits), xp.int32), -1)
        others = {"softmax": xp.zeros_like(logits), "lse": _full(xp, arrays[2], lead, nothing)}
        return indices, logits, *(others[name] for name in wanted)
    q, columns, of_queries = score_rows(problem, xp, tuple(arrays), sm_scale)

    def body(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        s, seen = of_queries(at)
        logits, best = best_first(xp, s, seen, problem.top_k, float_order(xp, s))
        results = [best, logits]
        if problem.topk_indices_global:
            first = xp.astype(take(xp, columns.first, at, 1)[..., None], best.dtype)
            results[0] = xp.where(best < 0, best, best + first)
        if problem.return_softmax:
            p, _, total = list_softmax(xp, logits, best >= 0)
            results.append(xp.where(total == 0, xp.zeros_like(p), p / total))
        if problem.return_lse:
            results.append(row_log_sum_exp(xp, s, seen))
        return carry, tuple(results)

    return over_queries(xp, problem.extents, q, body)[1]
