"""The definition of the gradients of softmax attention, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, index_range, narrow, round_through, sweep, take, wide
from cudnn_fe.attention.bands import places, within
from cudnn_fe.attention.pieces import pull_back, scores
from cudnn_fe.attention.tiles import Tile, Visible, join_rows, rows_per_step

if TYPE_CHECKING:
    from cudnn_fe.attention.sdpa.op import SdpaBackward

__all__ = ["backward"]


def backward(
    problem: SdpaBackward,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    do: Any,
    stats: Any,
    q_lengths: Any,
    k_lengths: Any,
    sink: Any,
    bias: Any,
    q_offsets: Any,
    k_offsets: Any,
    scale: float,
) -> tuple[Any, ...]:
    """``(dQ, dK, dV)``, and dBias and dSink where there are such operands.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Hq, Sq, D); one batch that holds all sequences where they are packed.
        k: Keys.
        v: Values.
        o: The forward's output.
        do: Its gradient.
        stats: The forward's log-sum-exp (B, Hq, Sq, 1).
        q_lengths: Queries of each sequence, or None.
        k_lengths: Keys of each sequence, or None.
        sink: Logits (1, Hq, 1, 1), or None.
        bias: What is added to the scaled scores, or None.
        q_offsets: First query of each packed sequence, or None.
        k_offsets: First key of each packed sequence, or None.
        scale: Factor of the scores.
    """
    io = problem.q_tensor.dtype.name
    q, k, v, o, do = (wide(x) for x in (q, k, v, o, do))
    of_queries, of_keys = places(xp, q, q_lengths, q_offsets), places(xp, k, k_lengths, k_offsets)
    lse, delta = stats[..., 0], xp.sum(o * do, axis=-1)
    alive = every(xp, (lse != float("-inf"), of_queries.valid))
    base = xp.where(alive, lse, xp.zeros_like(lse))
    visible = within(xp, problem.band, of_queries, of_keys, alive)

    def weights(x: Any, dp: Any, tile: Tile) -> tuple[Any, Any]:
        s = scale * x
        if bias is not None:
            s = s + wide(take(xp, take(xp, bias, tile.queries, 2), tile.keys, 3))
        p = xp.exp(s - take(xp, base, tile.queries, 2)[..., None])
        return p, p * (dp - take(xp, delta, tile.queries, 2)[..., None])

    def rounded(x: Any, dp: Any, tile: Tile) -> tuple[Any, Any]:
        p, ds = weights(x, dp, tile)
        return round_through(p, io), round_through(ds, io)

    dq, dk, dv = pull_back(xp, do, q, k, v, visible, rounded)
    grads = [narrow(x, io) for x in (scale * dq, scale * dk, dv)]
    if bias is not None:
        kind = problem.dbias_dtype
        assert kind is not None
        grads.append(narrow(_score_gradients(xp, do, q, k, v, visible, weights, bias.shape[0]), kind.name))
    if sink is not None:
        whole = lse == float("inf")  # of an infinite sink: its weight is 1, and O is 0
        pull = xp.where(alive & ~whole, xp.exp(sink[..., 0] - base) * delta, xp.zeros_like(delta))
        grads.append(-xp.sum(xp.sum(pull, axis=2, keepdims=True), axis=0, keepdims=True)[..., None])
    return tuple(grads)


def _score_gradients(xp: Any, do: Any, q: Any, k: Any, v: Any, visible: Visible, weights: Any, batch: int) -> Any:
    """dS of all pairs (batch, H, Sq, Sk), summed over batches where ``batch`` is 1: as large as the bias itself."""
    outer, heads, rows, _ = q.shape
    columns = k.shape[2]
    if 0 in (outer, heads, rows, columns):
        return xp.zeros_like(xp.broadcast_to(xp.sum(xp.zeros_like(q)), (batch, heads, rows, columns)))
    size = rows_per_step(q, rows, outer * heads * columns)
    keys = index_range(xp, columns, q)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any]]:
        queries = xp.clip(position * size + index_range(xp, size, q), 0, rows - 1)
        tile = Tile(queries, keys, visible(queries)(keys))
        q_step, do_step = take(xp, q, queries, 2), take(xp, do, queries, 2)
        _, ds = weights(scores(xp, q_step, k), scores(xp, do_step, v), tile)
        ds = tile.only(xp, ds)
        return carry, (xp.sum(ds, axis=0, keepdims=True) if batch < outer else ds,)

    return join_rows(xp, sweep(xp, -(-rows // size), step, ())[1][0], rows)
