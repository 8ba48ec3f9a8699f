"""The definition of the gradients of the indexer's KL loss, for any array namespace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, narrow, product, round_through, take, wide
from cudnn_fe.attention.dsa.dense import columns_of, heads_first, over_queries
from cudnn_fe.attention.pieces import by_key, by_query, scores
from cudnn_fe.attention.rows import add_at, listed, over_rows, rows_at

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.indexer_backward.op import DenseIndexerBackward, IndexerBackward

__all__ = ["dense", "sparse"]

_FLOOR = -100.0  # log of the smallest probability that counts
_LEAST = math.exp(_FLOOR)


def _score_gradient(xp: Any, target: Any, predict: Any, counts: Any, factor: Any) -> Any:
    """``g - p sum(g)`` with ``g = -max(t, e^-100)`` where the prediction counts: the gradient of the KL divergence."""
    least = xp.full_like(target, _LEAST)
    g = xp.where(counts, -xp.maximum(target, least) * factor, xp.zeros_like(target))
    return g - predict * xp.sum(g, axis=-1, keepdims=True)


def _by_head(xp: Any, s: Any, by_score: Any, weights: Any, io: str) -> tuple[Any, Any]:
    """From the scores' gradient to that of ``q_h . k``, as it multiplies, and that of the weights.

    ``by_score`` and ``weights`` broadcast to ``s``, which has keys last.
    """
    active = ~(s <= 0)  # a NaN stays one
    nothing = xp.zeros_like(s)
    by_product = xp.where(active, by_score * weights, nothing)
    return round_through(by_product, io), xp.sum(xp.where(active, by_score * s, nothing), axis=-1)


def _nothing(problem: Any, xp: Any, q: Any, weights: Any, k: Any, score: Any) -> tuple[Any, ...]:
    keys = narrow(xp.zeros_like(wide(k)), problem.dk_dtype)
    return xp.zeros_like(q), xp.zeros_like(weights), keys, xp.zeros_like(score)


def sparse(
    problem: IndexerBackward,
    xp: Any,
    q: Any,
    weights: Any,
    k: Any,
    target: Any,
    predict: Any,
    ids: Any,
    loss: Any,
    sm_scale: float,
    loss_coeff: float,
) -> tuple[Any, Any, Any, Any]:
    """Gradients of queries, weights, keys and scores.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Sq, H, D).
        weights: Weights of the heads (B, Sq, H).
        k: Keys (B, Sk, D).
        target: Target probabilities (B, Sq, K).
        predict: Predicted probabilities (B, Sq, K).
        ids: Listed keys (B, Sq, K).
        loss: Gradient of the loss, one element.
        sm_scale: Factor of the scores.
        loss_coeff: Factor of the loss.
    """
    if problem.degenerate:
        return _nothing(problem, xp, q, weights, k, target)
    io = problem.index_q.dtype.name
    batch, rows, heads, channels = q.shape
    keys, slots = k.shape[1], ids.shape[2]
    factor = xp.reshape(loss, (1,)) * (loss_coeff / (batch * rows))
    counts = (predict >= _LEAST) & (predict > 0)  # where subnormal numbers are flushed, the first compares with 0
    by_score = _score_gradient(xp, target, predict, counts, factor)
    valid = listed(xp, ids, None, keys * (batch if problem.topk_indices_global else 1))
    if not problem.topk_indices_global:
        ids = ids + (index_range(xp, batch, ids) * keys)[:, None, None]
    flat_q, flat_k = xp.reshape(wide(q), (batch * rows, heads, channels)), xp.reshape(wide(k), (batch * keys, channels))
    flat_w = xp.reshape(wide(weights), (batch * rows, heads))
    flat_ids, flat_valid, flat_score = (xp.reshape(x, (batch * rows, slots)) for x in (ids, valid, by_score))

    def step(dk: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        seen, here, queries = take(xp, flat_valid, at, 0), take(xp, flat_ids, at, 0), take(xp, flat_q, at, 0)
        listed_keys = rows_at(xp, flat_k, here, seen)
        # A query may hold NaN where it lists nothing: 0 times it is none of its scores.
        s = xp.where(seen[:, None], sm_scale * product(xp, queries, xp.matrix_transpose(listed_keys)), 0.0)
        score = xp.where(seen, take(xp, flat_score, at, 0), 0.0)
        ds, dw = _by_head(xp, s, score[:, None], take(xp, flat_w, at, 0)[..., None], io)
        added = product(xp, xp.matrix_transpose(ds), queries)
        added = xp.where((seen & fresh[:, None])[..., None], added, xp.zeros_like(added))
        dk = add_at(xp, dk, xp.reshape(here, (-1,)), xp.reshape(added, (-1, channels)))
        return dk, (narrow(sm_scale * product(xp, ds, listed_keys), io), dw)

    dk, (dq, dw) = over_rows(xp, flat_q, batch * rows, slots * max(heads, channels), step, xp.zeros_like(flat_k))
    return (
        xp.reshape(dq, q.shape),
        xp.reshape(narrow(dw, problem.weights.dtype.name), weights.shape),
        xp.reshape(narrow(sm_scale * dk, problem.dk_dtype), k.shape),
        by_score,
    )


def dense(
    problem: DenseIndexerBackward,
    xp: Any,
    q: Any,
    weights: Any,
    k: Any,
    attn: Any,
    norm: Any,
    index: Any,
    lse: Any,
    loss: Any,
    first: Any,
    second: Any,
    causal: Any,
    sm_scale: float,
    loss_coeff: float,
) -> tuple[Any, Any, Any, Any]:
    """Gradients of queries, weights, keys and scores.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Sq, H, D) or packed.
        weights: Weights of the heads.
        k: Keys (B, Sk, D) or packed.
        attn: Attention's probabilities, summed over heads.
        norm: Their sum per query.
        index: The indexer's scores.
        lse: Their log-sum-exp per query.
        loss: Gradient of the loss, one element.
        first: First query of each packed sequence, or None.
        second: First key of each packed sequence, or None.
        causal: Token of each sequence's first query, or None.
        sm_scale: Factor of the scores.
        loss_coeff: Factor of the loss.
    """
    if problem.degenerate:
        return _nothing(problem, xp, q, weights, k, index)
    io, e = problem.index_q.dtype.name, problem.extents
    factor = xp.reshape(loss, (1,)) * (loss_coeff / (e.batch * e.rows))
    q, factors = heads_first(xp, wide(q)), heads_first(xp, wide(weights)[..., None])
    k = xp.reshape(wide(k), (e.batch, 1, e.keys, k.shape[-1]))
    columns = columns_of(xp, e, problem.ratio, q, first, second, causal)
    attn, index = (xp.reshape(x, (e.batch, e.rows, e.width)) for x in (attn, index))
    norm, lse = (xp.reshape(x, (e.batch, e.rows, 1)) for x in (norm, lse))
    column = index_range(xp, e.width, q)

    def body(dk: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        seen = column < take(xp, columns.count, at, 1)[..., None]
        log_p = xp.where(seen, take(xp, index, at, 1) - take(xp, lse, at, 1), float("-inf"))
        target = xp.where(seen, take(xp, attn, at, 1), 0.0) / (take(xp, norm, at, 1) + 1e-10)
        score = _score_gradient(xp, target, xp.exp(log_p), log_p >= _FLOOR, factor)
        score = xp.where(seen, score, xp.zeros_like(score))
        by_score, visible = (x[:, None] for x in columns.by_key(xp, score, at))
        visible = visible & fresh[:, None]
        queries = take(xp, q, at, 2)
        s = xp.where(visible, sm_scale * scores(xp, queries, k), 0.0)
        ds, dw = _by_head(xp, s, by_score, take(xp, factors, at, 2), io)
        dk = dk + by_key(xp, ds, visible, queries, 1)
        dq = narrow(sm_scale * by_query(xp, ds, visible, k, signed=True), io)
        return dk, (xp.permute_dims(dq, (0, 2, 1, 3)), xp.permute_dims(dw, (0, 2, 1)), score)

    dk, (dq, dw, by_score) = over_queries(xp, e, q, body, xp.zeros_like(k))
    shapes = [spec.shape for spec in problem.outputs]
    return (
        xp.reshape(dq, shapes[0]),
        narrow(xp.reshape(dw, shapes[1]), problem.weights.dtype.name),
        xp.reshape(narrow(sm_scale * dk, problem.dk_dtype), shapes[2]),
        by_score,
    )
