"""The definition of HSTU attention and of its gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, narrow, round_through, sigmoid, take, wide
from cudnn_fe.attention.pieces import pull_back, weighted_values
from cudnn_fe.attention.sequences import Rows, batch_first, in_ranges, rows_of, same_sequence
from cudnn_fe.attention.tiles import Tile, Visible

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
    if problem.degenerate:
        return (narrow(xp.zeros_like(xp.permute_dims(q[0], (1, 0, 2))), io),)

    def weights(x: Any, tile: Tile) -> Any:
        return round_through(_silu(xp, alpha * x), io)

    visible = _visible(problem, xp, q_offsets, k_offsets, func, q.shape[2], k.shape[2])
    output = weighted_values(xp, q, k, v, visible, weights, signed=True) / scaling
    return (narrow(xp.permute_dims(output[0], (1, 0, 2)), io),)


def _silu(xp: Any, x: Any) -> Any:
    return x * sigmoid(xp, x)


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
    if problem.degenerate:
        return tuple(narrow(xp.zeros_like(xp.permute_dims(x[0], (1, 0, 2))), io) for x in (q, k, v))

    def weights(x: Any, dp: Any, tile: Tile) -> tuple[Any, Any]:
        x = alpha * x
        s = sigmoid(xp, x)
        return round_through(x * s, io), round_through(dp * s * (1 + x * (1 - s)), io)

    visible = _visible(problem, xp, q_offsets, k_offsets, func, q.shape[2], k.shape[2])
    dq, dk, dv = pull_back(xp, do, q, k, v, visible, weights)
    grads = (alpha / scaling * dq, alpha / scaling * dk, dv / scaling)
    return tuple(narrow(xp.permute_dims(x[0], (1, 0, 2)), io) for x in grads)


def _visible(problem: Any, xp: Any, q_offsets: Any, k_offsets: Any, func: Any, rows: int, keys: int) -> Visible:
    """The mask: positions are counted per sequence, and the last query stands beside the last key."""
    of_queries, of_keys = rows_of(xp, q_offsets, rows), rows_of(xp, k_offsets, keys)
    key_lengths, window = k_offsets[1:] - k_offsets[:-1], problem.window

    def visible(queries: Any) -> Any:
        at = of_queries.at(xp, queries)
        diagonal = (at.position + take(xp, key_lengths, at.sequence, 0) - at.length)[:, None]
        ends = take(xp, func[0], queries, 1) if window.kind == "arbitrary" else None

        def among(columns: Any) -> Any:
            of = of_keys.at(xp, columns)
            together, column = same_sequence(at, of), of.position
            if ends is not None:
                return every(xp, (together, in_ranges(ends, column)))
            if window.kind == "full":
                return together
            if window.kind == "causal":
                return every(xp, (together, column <= diagonal))
            return every(xp, (together, column >= diagonal - window.left, column <= diagonal + window.right))

        return among

    return visible


def _pages(xp: Any, paged: Any, page_ids: Any, page_starts: Any, rows: Rows) -> tuple[Any, Any]:
    """Keys and values in the order of the sequences, from their pages."""
    count, _, slots, heads, channels = paged.shape
    entry = take(xp, page_starts, rows.sequence, 0) + rows.position // slots
    row = take(xp, page_ids, entry, 0) * slots + rows.position % slots
    flat = (xp.reshape(paged[:, side], (count * slots, heads, channels)) for side in range(2))
    keys, values = (take(xp, x, row, 0) for x in flat)
    return keys, values
