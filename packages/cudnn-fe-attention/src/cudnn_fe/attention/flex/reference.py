"""The definition of flex attention and of its gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, narrow, take, wide
from cudnn_fe.attention.pieces import attend, attend_gradients, log_sum_exp
from cudnn_fe.attention.sequences import in_ranges, rows_of, same_sequence
from cudnn_fe.attention.tiles import Visible

if TYPE_CHECKING:
    from cudnn_fe.attention.flex.op import FlexAttention, FlexAttentionBackward

__all__ = ["backward", "forward"]


def forward(
    problem: FlexAttention,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    ends: Any,
    q_offsets: Any,
    k_offsets: Any,
    softmax_scale: float,
) -> tuple[Any, Any, Any]:
    """``(O, LSE, largest scaled score of each head)``.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Sq, Hq, D), or packed (Tq, Hq, D).
        k: Keys.
        v: Values.
        ends: Endpoints (1 or Hq, N, queries).
        q_offsets: First query of each packed sequence, or None.
        k_offsets: First key of each packed sequence, or None.
        softmax_scale: Factor of the scores.
    """
    io = problem.q.dtype.name
    q, k, v = (_heads_first(xp, wide(x)) for x in (q, k, v))
    visible = _visible(problem, xp, q, k, ends, q_offsets, k_offsets)
    output, top, total = attend(xp, q, k, v, visible, softmax_scale, io)
    lowest = xp.full_like(xp.sum(xp.sum(top, axis=2), axis=0), float("-inf"))
    highest = lowest if 0 in top.shape else xp.max(xp.max(top, axis=2), axis=0)
    return narrow(_tokens_first(problem, xp, output), io), _rows(problem, log_sum_exp(xp, top, total)), highest


def backward(
    problem: FlexAttentionBackward,
    xp: Any,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    ends: Any,
    q_offsets: Any,
    k_offsets: Any,
    dlse: Any,
    softmax_scale: float,
) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)``, from the forward's results.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        do: Gradient of O.
        q: As in `forward`, and so is all that both have.
        k: Keys.
        v: Values.
        o: The forward's output.
        lse: The forward's log-sum-exp.
        ends: Endpoints.
        q_offsets: First query of each packed sequence, or None.
        k_offsets: First key of each packed sequence, or None.
        dlse: Gradient of the log-sum-exp, or None.
        softmax_scale: Factor of the scores.
    """
    io = problem.q.dtype.name
    do, q, k, v, o = (_heads_first(xp, wide(x)) for x in (do, q, k, v, o))
    lse, dlse = (x if x is None or x.ndim == 3 else x[None] for x in (lse, dlse))
    delta = xp.sum(o * do, axis=-1)
    if dlse is not None:
        delta = delta - dlse
    visible = _visible(problem, xp, q, k, ends, q_offsets, k_offsets)
    grads = attend_gradients(xp, do, q, k, v, lse, delta, visible, softmax_scale, io)
    return tuple(narrow(_tokens_first(problem, xp, x), io) for x in grads)


def _heads_first(xp: Any, x: Any) -> Any:
    """(B, S, H, D), or packed (T, H, D) as one sequence, as (B, H, S, D)."""
    return xp.permute_dims(x if x.ndim == 4 else x[None], (0, 2, 1, 3))


def _tokens_first(problem: Any, xp: Any, x: Any) -> Any:
    """`_heads_first` undone."""
    turned = xp.permute_dims(x, (0, 2, 1, 3))
    return turned if problem.q.ndim == 4 else turned[0]


def _rows(problem: Any, x: Any) -> Any:
    return x if problem.q.ndim == 4 else x[0]


def _visible(problem: Any, xp: Any, q: Any, k: Any, ends: Any, q_offsets: Any, k_offsets: Any) -> Visible:
    """The mask: intervals of each query's own sequence."""
    masks, count = ends.shape[:2]
    by_row = xp.permute_dims(xp.reshape(ends, (masks, count, q.shape[0], q.shape[2])), (1, 2, 0, 3))
    packed = problem.q.ndim == 3
    of_queries = rows_of(xp, q_offsets, q.shape[2]) if packed else None
    of_keys = rows_of(xp, k_offsets, k.shape[2]) if packed else None

    def visible(queries: Any) -> Any:
        given = take(xp, by_row, queries, 3)
        at = of_queries.at(xp, queries) if of_queries is not None else None

        def among(keys: Any) -> Any:
            if at is None or of_keys is None:
                return in_ranges(given, keys)
            of = of_keys.at(xp, keys)
            return every(xp, (same_sequence(at, of), in_ranges(given, of.position)))

        return among

    return visible
