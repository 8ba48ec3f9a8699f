"""The definition of NSA's top-k reduction, for any array namespace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, sweep, take, wide
from cudnn_fe.attention.pieces import scores
from cudnn_fe.attention.sequences import Rows, batch_first, rows_of
from cudnn_fe.attention.tiles import join_rows, rows_per_step
from cudnn_fe.attention.top_k import along_last, best_first

if TYPE_CHECKING:
    from cudnn_fe.attention.nsa_topk.op import TopKReduction

__all__ = ["topk_reduction"]


def topk_reduction(
    problem: TopKReduction,
    xp: Any,
    q: Any,
    k: Any,
    lse: Any,
    q_offsets: Any,
    k_offsets: Any,
    scale_softmax: float,
) -> tuple[Any, Any]:
    """``(scores, indices)`` of the best blocks of each query.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries, padded or packed.
        k: Compressed keys.
        lse: ``-log2(e)`` times the log-sum-exp of each query.
        q_offsets: First row of each packed sequence of queries, or None.
        k_offsets: Likewise for keys.
        scale_softmax: Factor of the scores.
    """
    packed = problem.q_tensor.ndim == 3
    q, k = (batch_first(xp, wide(x)) for x in (q, k))
    if packed:
        lse = xp.permute_dims(xp.reshape(lse, lse.shape[:2]), (1, 0))[None]
    batch, heads, rows, _ = q.shape
    key_heads, keys = k.shape[1:3]
    if problem.degenerate:
        lead = (rows, key_heads, problem.k_value) if packed else (batch, key_heads, rows, problem.k_value)
        nothing = xp.broadcast_to(xp.sum(xp.zeros_like(lse)), lead)
        return xp.full_like(nothing, float("-inf")), xp.full_like(xp.astype(nothing, xp.int32), -1)
    size = rows_per_step(q, rows, batch * heads * keys)
    offsets, per_block = index_range(xp, size, q), problem.selection_block_size // problem.compress_stride
    blocks = -(-keys // per_block)
    local = index_range(xp, blocks * per_block, q)
    of_queries = rows_of(xp, q_offsets, rows) if packed else None
    ids = index_range(xp, blocks, q)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        queries = xp.clip(position * size + offsets, 0, rows - 1)
        place, first, count = _places(xp, of_queries, k_offsets, queries, keys)
        exponent = scale_softmax * math.log2(math.e) * scores(xp, take(xp, q, queries, 2), k)
        p = xp.exp2(exponent + take(xp, lse, queries, 2)[..., None])
        p = xp.reshape(p, (batch, key_heads, heads // key_heads, size, keys))
        summed = _in_order([p[:, :, member] for member in range(heads // key_heads)])
        # Key j of the query's own sequence stands at ``first + j``; what is hidden counts as 0, NaN too.
        summed = along_last(xp, summed, xp.clip(first + local, 0, keys - 1))
        shown = local < count
        if problem.is_causal:
            shown = shown & ((local + 1) * problem.compress_stride - 1 <= place)
        summed = xp.where(shown, summed, xp.zeros_like(summed))
        folded = xp.reshape(summed, (batch, key_heads, size, blocks, per_block))
        score = _in_order([folded[..., e] for e in range(per_block)])
        valid = (ids > 0) & (ids < (place + 1) // problem.selection_block_size - 2) & (ids * per_block < count)
        return carry, best_first(xp, score, xp.broadcast_to(valid, score.shape), problem.k_value)

    _, (best, where) = sweep(xp, -(-rows // size), step, ())
    best, where = join_rows(xp, best, rows), join_rows(xp, where, rows)
    return tuple(xp.permute_dims(x[0], (1, 0, 2)) if packed else x for x in (best, where))


def _in_order(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _places(xp: Any, of_queries: Rows | None, k_offsets: Any, queries: Any, keys: int) -> tuple[Any, Any, Any]:
    """Each query's place in its sequence, and the first key and the keys of that sequence: columns (M, 1)."""
    if of_queries is None:
        column = queries[:, None]
        return column, xp.zeros_like(column), xp.full_like(column, keys)
    at = of_queries.at(xp, queries)
    first = take(xp, k_offsets, at.sequence, 0)
    count = take(xp, k_offsets[1:] - k_offsets[:-1], at.sequence, 0)
    count = xp.where(at.valid, count, xp.zeros_like(count))
    return at.position[:, None], first[:, None], count[:, None]
