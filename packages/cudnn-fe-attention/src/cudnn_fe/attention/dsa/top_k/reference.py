"""The definition of the top-k of rows of scores, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import astype, index_range, take
from cudnn_fe.attention.rows import over_rows
from cudnn_fe.attention.top_k import along_last, best_first, float_order, in_order

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.top_k.op import IndexerTopK

__all__ = ["top_k"]


def top_k(problem: IndexerTopK, xp: Any, scores: Any, seq_lens: Any) -> tuple[Any, ...]:
    """The columns of the largest scores of each row, ascending, and their scores where asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        scores: (rows, columns).
        seq_lens: Length of every ``next_n`` rows, of which the last counts that many columns, the one before one less.
    """
    rows, columns = scores.shape
    group, count, last_first = problem.next_n, problem.top_k, problem.tie_break == 2
    if problem.degenerate:
        nothing = xp.zeros_like(xp.broadcast_to(xp.sum(xp.zeros_like(scores)), (rows, count)))
        indices = xp.full_like(xp.astype(nothing, xp.int32), -1)
        return (indices, astype(xp.full_like(nothing, float("-inf")), problem.input_values.dtype.name))[
            : len(problem.outputs)
        ]
    row = index_range(xp, rows, scores)
    lengths = take(xp, seq_lens, row // group, 0) - group + row % group + 1
    column = index_range(xp, columns, scores)

    def step(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        here = take(xp, scores, at, 0)
        order, valid = float_order(xp, here), column < take(xp, lengths, at, 0)[:, None]
        if last_first:  # of equal scores the first is kept
            order, valid = xp.flip(order, axis=-1), xp.flip(valid, axis=-1)
        _, best = best_first(xp, here, valid, count, order)
        if last_first:
            best = xp.where(best < 0, best, columns - 1 - best)
        best = in_order(xp, best)
        values = along_last(xp, here, xp.clip(best, 0, columns - 1))
        return carry, (best, xp.where(best < 0, xp.full_like(values, float("-inf")), values))

    _, results = over_rows(xp, scores, rows, max(columns, count), step)
    return tuple(results[: len(problem.outputs)])
