"""The definition of NSA's sliding-window attention, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, narrow, take, wide
from cudnn_fe.attention.pieces import attend, log_sum_exp
from cudnn_fe.attention.sequences import batch_first, offsets_of, rows_of, same_sequence

if TYPE_CHECKING:
    from cudnn_fe.attention.nsa_sliding_window.op import SlidingWindowAttention

__all__ = ["sliding_window_attention"]


def sliding_window_attention(
    problem: SlidingWindowAttention,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    q_lengths: Any,
    k_lengths: Any,
    q_ragged: Any,
    k_ragged: Any,
    v_ragged: Any,
    o_ragged: Any,
    stats_ragged: Any,
    attn_scale: float,
) -> tuple[Any, Any]:
    """``(O, LSE)`` over keys j with ``i - L < j <= i + R``.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries, padded or packed.
        k: Keys.
        v: Values.
        q_lengths: Queries of each packed sequence, or None.
        k_lengths: Keys of each packed sequence, or None.
        q_ragged: First element of each sequence in Q, or None.
        k_ragged: Likewise in K.
        v_ragged: Likewise in V.
        o_ragged: Likewise in O.
        stats_ragged: Likewise in the statistics.
        attn_scale: Factor of the scores.
    """
    q, k, v = (batch_first(xp, wide(x)) for x in (q, k, v))
    io, out = problem.q_tensor.dtype.name, problem.o_dtype.name
    if problem.q_tensor.ndim == 4:
        output, top, total = attend(xp, q, k, v, lambda i: lambda j: _band(problem, i, j), attn_scale, io)
        return narrow(output, out), log_sum_exp(xp, top, total)[..., None]
    q_lengths, k_lengths = (xp.reshape(x, (-1,)) for x in (q_lengths, k_lengths))
    q_first, o_first, stats_first, k_first, v_first = _first_rows(
        problem, xp, q_lengths, k_lengths, (q_ragged, o_ragged, stats_ragged, k_ragged, v_ragged)
    )
    # Rows are walked in the order of O: what a row's query is, is read where Q keeps it.
    of_rows, of_keys = rows_of(xp, o_first, q.shape[2], q_lengths), rows_of(xp, k_first, k.shape[2], k_lengths)
    queries = take(xp, q, take(xp, q_first, of_rows.sequence, 0) + of_rows.position, 2) if q.shape[2] else q
    values = take(xp, v, take(xp, v_first, of_keys.sequence, 0) + of_keys.position, 2) if v.shape[2] else v

    def visible(rows: Any) -> Any:
        at = of_rows.at(xp, rows)

        def among(columns: Any) -> Any:
            of = of_keys.at(xp, columns)
            return every(xp, (same_sequence(at, of), _band(problem, at.position, of.position)))

        return among

    output, top, total = attend(xp, queries, k, values, visible, attn_scale, io)
    statistics = log_sum_exp(xp, top, total)[0]
    at = rows_of(xp, stats_first, q.shape[2], q_lengths)
    if q.shape[2]:
        moved = take(xp, statistics, take(xp, o_first, at.sequence, 0) + at.position, 1)
        statistics = xp.where(at.valid, moved, xp.full_like(moved, float("-inf")))
    return narrow(xp.permute_dims(output[0], (1, 0, 2)), out), xp.permute_dims(statistics, (1, 0))[..., None]


def _band(problem: SlidingWindowAttention, queries: Any, keys: Any) -> Any:
    rows = queries[:, None]
    return (keys > rows - problem.left_bound) & (keys <= rows + problem.right_bound)


def _first_rows(
    problem: SlidingWindowAttention, xp: Any, q_lengths: Any, k_lengths: Any, ragged: tuple[Any, ...]
) -> list[Any]:
    """The first row of each sequence in Q, O, the statistics, K and V."""
    if ragged[0] is None:
        queries, keys = offsets_of(xp, q_lengths), offsets_of(xp, k_lengths)
        return [queries, queries, queries, keys, keys]
    q, k, v = problem.q_tensor, problem.k_tensor, problem.v_tensor
    steps = (q.strides[0], q.shape[1] * v.shape[2], q.shape[1], k.strides[0], v.strides[0])
    return [xp.reshape(x, (-1,)) // max(step, 1) for x, step in zip(ragged, steps, strict=True)]
