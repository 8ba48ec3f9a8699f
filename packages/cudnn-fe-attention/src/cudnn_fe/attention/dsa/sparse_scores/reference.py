"""The definitions of the probabilities at listed keys, for any array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, product, take, wide
from cudnn_fe.attention.rows import list_softmax, listed, over_rows, rows_at

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.sparse_scores.op import SparseAttnScore, SparseIndexerScore

__all__ = ["attention", "indexer", "over_lists"]

_LEAST = 1e-10  # a sum of probabilities below this is none


def indexer(problem: SparseIndexerScore, xp: Any, q: Any, k: Any, weights: Any, ids: Any, lengths: Any) -> tuple[Any]:
    """Softmax of the indexer's scores over each query's listed keys.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Sq, H, D).
        k: Keys (B, Sk, D).
        weights: Weights of the heads (B, Sq, H).
        ids: Listed keys (B, Sq, K).
        lengths: Slots that count (B, Sq), or None.
    """
    flat = xp.reshape(wide(weights), (-1, weights.shape[-1]))

    def probabilities(s: Any, seen: Any, at: Any) -> Any:
        positive = xp.where(s < 0, xp.zeros_like(s), s)
        scores = xp.sum(positive * take(xp, flat, at, 0)[..., None], axis=1)
        p, _, total = list_softmax(xp, scores, seen)
        return xp.where(total == 0, xp.zeros_like(p), p / total)

    return (over_lists(problem, xp, q, k, ids, lengths, probabilities),)


def attention(
    problem: SparseAttnScore, xp: Any, q: Any, k: Any, lse: Any, ids: Any, lengths: Any, softmax_scale: float
) -> tuple[Any]:
    """Attention's probabilities at each query's listed keys, summed over heads and normalised.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Sq, H, D).
        k: Keys (B, Sk, D).
        lse: Log-sum-exp of every query and head (B, Sq, H).
        ids: Listed keys (B, Sq, K).
        lengths: Slots that count (B, Sq), or None.
        softmax_scale: Factor of the scores.
    """
    flat = xp.reshape(lse, (-1, lse.shape[-1]))

    def probabilities(s: Any, seen: Any, at: Any) -> Any:
        p = xp.sum(xp.exp(softmax_scale * s - take(xp, flat, at, 0)[..., None]), axis=1)
        p = xp.where(seen, p, xp.zeros_like(p))
        total = xp.sum(p, axis=-1, keepdims=True)
        return xp.where(total <= _LEAST, xp.zeros_like(p), p / total)

    return (over_lists(problem, xp, q, k, ids, lengths, probabilities),)


def over_lists(
    problem: Any, xp: Any, q: Any, k: Any, ids: Any, lengths: Any, body: Callable[[Any, Any, Any], Any]
) -> Any:
    """``body(q . k, seen, rows)`` for the listed keys of some queries, (M, H, K), over all queries: (B, Sq, K)."""
    if problem.degenerate:
        return xp.zeros_like(xp.broadcast_to(xp.sum(xp.zeros_like(wide(q))), ids.shape))
    q, k = wide(q), wide(k)
    batch, rows, heads, channels = q.shape
    keys, slots = k.shape[1], ids.shape[2]
    valid = listed(xp, ids, lengths, keys * (batch if problem.topk_indices_global else 1))
    if not problem.topk_indices_global:
        ids = ids + (index_range(xp, batch, ids) * keys)[:, None, None]
    q, k = xp.reshape(q, (batch * rows, heads, channels)), xp.reshape(k, (batch * keys, channels))
    valid, ids = (xp.reshape(x, (batch * rows, slots)) for x in (valid, ids))

    def step(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        seen = take(xp, valid, at, 0)
        listed_keys = rows_at(xp, k, take(xp, ids, at, 0), seen)
        return carry, (body(product(xp, take(xp, q, at, 0), xp.matrix_transpose(listed_keys)), seen, at),)

    _, (result,) = over_rows(xp, q, batch * rows, slots * max(heads, channels), step)
    return xp.reshape(result, (batch, rows, slots))
