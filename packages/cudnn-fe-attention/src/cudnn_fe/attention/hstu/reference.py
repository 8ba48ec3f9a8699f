"""The definition of HSTU attention and of its gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, index_range, narrow, round_through, sigmoid, sweep, take, wide
from cudnn_fe.attention.pieces import Visible, by_key, by_query, join_rows, rows_per_step, scores
from cudnn_fe.attention.sequences import Rows, batch_first, rows_of, same_sequence

if TYPE_CHECKING:
    from cudnn_fe.attention.hstu.op import HstuAttention, HstuAttentionBackward

__all__ = ["backward", "forward"]

PAGE = 128


def forward(
    problem: HstuAttention,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    q_offsets: Any,
    k_offsets: Any,
    func: Any,
    paged: Any,
    page_ids: Any,
    page_starts: Any,
    alpha: float,
    scaling: float,
) -> tuple[Any]:
    """``O = silu(alpha Q K^T) V / scaling`` where the mask allows.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Packed queries (Tq, H, D).
        k: Packed keys (Tk, H, D).
        v: Packed values.
        q_offsets: First query of each sequence.
        k_offsets: First key of each sequence.
        func: Ends of the visible ranges of each query, or None.
        paged: Pages of keys and values that stand for ``k`` and ``v``, or None.
        page_ids: Pages in the order of the sequences.
        page_starts: First entry of each sequence in ``page_ids``.
        alpha: Factor of the scores.
        scaling: Divisor of the output.
    """
    io = problem.q_tensor.dtype.name
    if paged is not None:
        k, v = _pages(xp, paged, page_ids, page_starts, rows_of(xp, k_offsets, k.shape[0]))
    q, k, v = (batch_first(xp, wide(x)) for x in (q, k, v))
    rows, heads = q.shape[2], q.shape[1]
    if problem.degenerate:
        return (narrow(xp.zeros_like(xp.permute_dims(q[0], (1, 0, 2))), io),)
    visible = _visible(problem, xp, q_offsets, k_offsets, func, rows, k.shape[2])
    size = rows_per_step(rows, heads, k.shape[2])
    offsets = index_range(xp, size, q)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        queries = xp.clip(position * size + offsets, 0, rows - 1)
        seen = visible(queries)
        x = alpha * scores(xp, take(xp, q, queries, 2), k)
        weights = xp.where(seen, x * sigmoid(xp, x), xp.zeros_like(x))
        return carry, (by_query(xp, round_through(weights, io), seen, v, signed=True),)

    output = join_rows(xp, sweep(xp, -(-rows // size), step, ())[1][0], rows) / scaling
    return (narrow(xp.permute_dims(output[0], (1, 0, 2)), io),)


def backward(
    problem: HstuAttentionBackward,
    xp: Any,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    q_offsets: Any,
    k_offsets: Any,
    func: Any,
    alpha: float,
    scaling: float,
) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)``; the scores are computed anew.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        do: Gradient of the output (Tq, H, D).
        q: As in `forward`, and so is all that follows.
        k: Packed keys.
        v: Packed values.
        q_offsets: First query of each sequence.
        k_offsets: First key of each sequence.
        func: Ends of the visible ranges, or None.
        alpha: Factor of the scores.
        scaling: Divisor of the output.
    """
    io = problem.q_tensor.dtype.name
    do, q, k, v = (batch_first(xp, wide(x)) for x in (do, q, k, v))
    rows, heads = q.shape[2], q.shape[1]
    if problem.degenerate:
        return tuple(narrow(xp.zeros_like(xp.permute_dims(x[0], (1, 0, 2))), io) for x in (q, k, v))
    visible = _visible(problem, xp, q_offsets, k_offsets, func, rows, k.shape[2])
    size = rows_per_step(rows, heads, k.shape[2])
    offsets = index_range(xp, size, q)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        dk, dv = carry
        given = position * size + offsets
        queries = xp.clip(given, 0, rows - 1)
        seen = every(xp, (visible(queries), (given < rows)[:, None]))
        q_step, do_step = take(xp, q, queries, 2), take(xp, do, queries, 2)
        x = alpha * scores(xp, q_step, k)
        s, nothing = sigmoid(xp, x), xp.zeros_like(x)
        weights = round_through(xp.where(seen, x * s, nothing), io)
        slope = s * (1 + x * (1 - s))
        ds = round_through(xp.where(seen, scores(xp, do_step, v) * slope, nothing), io)
        dk = dk + by_key(xp, ds, seen, q_step, heads)
        dv = dv + by_key(xp, weights, seen, do_step, heads)
        return (dk, dv), (by_query(xp, ds, seen, k, signed=True),)

    (dk, dv), (dq,) = sweep(xp, -(-rows // size), step, (xp.zeros_like(k), xp.zeros_like(v)))
    grads = (alpha / scaling * join_rows(xp, dq, rows), alpha / scaling * dk, dv / scaling)
    return tuple(narrow(xp.permute_dims(x[0], (1, 0, 2)), io) for x in grads)


def _visible(problem: Any, xp: Any, q_offsets: Any, k_offsets: Any, func: Any, rows: int, keys: int) -> Visible:
    """The mask: positions are counted per sequence, and the last query stands beside the last key."""
    of_queries, of_keys = rows_of(xp, q_offsets, rows), rows_of(xp, k_offsets, keys)
    key_lengths, window, column = k_offsets[1:] - k_offsets[:-1], problem.window, of_keys.position

    def visible(queries: Any) -> Any:
        at = of_queries.at(xp, queries)
        together = same_sequence(at, of_keys)
        if window.kind == "full":
            return together
        if window.kind == "arbitrary":
            return every(xp, (together, _in_ranges(take(xp, func[0], queries, 1), column)))
        diagonal = (at.position + take(xp, key_lengths, at.sequence, 0) - at.length)[:, None]
        if window.kind == "causal":
            return every(xp, (together, column <= diagonal))
        return every(xp, (together, column >= diagonal - window.left, column <= diagonal + window.right))

    return visible


def _in_ranges(ends: Any, column: Any) -> Any:
    """Whether a key lies before the first end, or in one of the ranges that follow: ``ends`` is (N, M)."""
    inside = column < ends[0][:, None]
    for pair in range(ends.shape[0] // 2):
        low, high = ends[2 * pair + 1], ends[2 * pair + 2]
        inside = inside | ((column >= low[:, None]) & (column < high[:, None]))
    return inside


def _pages(xp: Any, paged: Any, page_ids: Any, page_starts: Any, rows: Rows) -> tuple[Any, Any]:
    """Keys and values in the order of the sequences, from their pages."""
    count, _, slots, heads, channels = paged.shape
    entry = take(xp, page_starts, rows.sequence, 0) + rows.position // slots
    row = take(xp, page_ids, entry, 0) * slots + rows.position % slots
    flat = (xp.reshape(paged[:, side], (count * slots, heads, channels)) for side in range(2))
    keys, values = (take(xp, x, row, 0) for x in flat)
    return keys, values
