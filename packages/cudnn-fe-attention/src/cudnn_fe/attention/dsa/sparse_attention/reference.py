"""The definition of sparse attention over listed rows and of its gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import narrow, product, round_through, take, wide
from cudnn_fe.attention.pieces import log_sum_exp
from cudnn_fe.attention.rows import add_at, list_softmax, listed, over_rows, rows_at
from cudnn_fe.attention.sinks import sink_share

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.sparse_attention.op import SparseAttention, SparseAttentionBackward

__all__ = ["backward", "forward"]

_INF = float("inf")


def forward(
    problem: SparseAttention, xp: Any, q: Any, kv: Any, ids: Any, sink: Any, lengths: Any, softmax_scale: float
) -> tuple[Any, ...]:
    """``(O, max, LSE)`` of a softmax over the listed rows and the sink, and the LSE of the first slots where asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (T, H, D).
        kv: Rows (Tkv, D): keys, and in their first channels values.
        ids: Listed rows (T, K).
        sink: A score per head that takes weight and gives no value (H,), or None.
        lengths: Slots that count (T,), or None.
        softmax_scale: Factor of the scores.
    """
    io, first, width = problem.q.dtype.name, problem.indexer_topk, problem.value_channels
    q, kv = wide(q), wide(kv)
    if problem.degenerate:
        return _nothing(problem, xp, q)
    valid = listed(xp, ids, lengths, kv.shape[0])
    rows, heads, channels = q.shape

    def step(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        del fresh
        seen = take(xp, valid, at, 0)
        keys = rows_at(xp, kv, take(xp, ids, at, 0), seen)
        z = softmax_scale * product(xp, take(xp, q, at, 0), xp.matrix_transpose(keys))
        p, top, total = list_softmax(xp, z, seen[:, None])
        sums = product(xp, round_through(p, io), keys[..., :width])
        weight = total if sink is None else total + xp.exp(sink[:, None] - top)
        out = xp.where(total == 0, xp.zeros_like(sums), sums / weight)
        found = [narrow(out, io), top[..., 0], _lse(xp, top, total, seen)]
        if first:
            _, top, total = list_softmax(xp, z[..., :first], seen[:, None, :first])
            found.append(_lse(xp, top, total, seen[:, :first]))
        return carry, tuple(found)

    results: tuple[Any, ...] = over_rows(xp, q, rows, ids.shape[1] * max(heads, channels), step)[1]
    return results


def _lse(xp: Any, top: Any, total: Any, seen: Any) -> Any:
    """The log-sum-exp, plus infinity where nothing is listed."""
    lse = log_sum_exp(xp, top, total)[..., 0]
    return xp.where(xp.any(seen, axis=-1)[:, None], lse, xp.full_like(lse, _INF))


def _nothing(problem: SparseAttention, xp: Any, q: Any) -> tuple[Any, ...]:
    """What empty lists give."""
    row = xp.sum(q, axis=-1) * 0 if 0 in q.shape else xp.zeros_like(q[..., 0])
    out = xp.zeros_like(xp.broadcast_to(row[..., None], (*row.shape, problem.value_channels)))
    lse = xp.full_like(row, _INF)
    return (narrow(out, problem.q.dtype.name), -lse, lse, lse)[: len(problem.outputs)]


def backward(
    problem: SparseAttentionBackward,
    xp: Any,
    q: Any,
    kv: Any,
    out: Any,
    dout: Any,
    lse: Any,
    sink: Any,
    ids: Any,
    lengths: Any,
    softmax_scale: float,
) -> tuple[Any, Any, Any]:
    """``(dQ, dKV, d_sink)``, from the forward's results.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (T, H, D).
        kv: Rows (Tkv, D).
        out: The forward's output.
        dout: Its gradient.
        lse: The forward's log-sum-exp, without the sink.
        sink: The sinks (H,).
        ids: Listed rows (T, K).
        lengths: Slots that count (T,), or None.
        softmax_scale: Factor of the scores.
    """
    io, width = problem.q.dtype.name, problem.value_channels
    if problem.degenerate:
        return xp.zeros_like(q), xp.zeros_like(kv), xp.zeros_like(sink)
    q, kv, dout = wide(q), wide(kv), wide(dout)
    joined, share = sink_share(xp, lse, sink)
    delta = xp.sum(wide(out) * dout, axis=-1)
    lost = xp.where(lse == _INF, xp.zeros_like(delta), delta * share)
    valid = listed(xp, ids, lengths, kv.shape[0])
    rows, heads, channels = q.shape
    rest = xp.zeros_like(kv[:1, width:])

    def step(dkv: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        seen, here, base = take(xp, valid, at, 0), take(xp, ids, at, 0), take(xp, joined, at, 0)
        keys, queries, grads = rows_at(xp, kv, here, seen), take(xp, q, at, 0), take(xp, dout, at, 0)
        alive = seen[:, None] & ~xp.isinf(base)[..., None]
        p = xp.exp(softmax_scale * product(xp, queries, xp.matrix_transpose(keys)) - base[..., None])
        nothing = xp.zeros_like(p)
        dp = product(xp, grads, xp.matrix_transpose(keys[..., :width]))
        ds = xp.where(alive, p * (dp - take(xp, delta, at, 0)[..., None]) * softmax_scale, nothing)
        p, ds = round_through(xp.where(alive, p, nothing), io), round_through(ds, io)
        by_value = product(xp, xp.matrix_transpose(p), xp.where(xp.isinf(base)[..., None], 0.0, grads))
        if channels > width:
            by_value = xp.concat((by_value, xp.broadcast_to(rest, (*by_value.shape[:2], channels - width))), axis=-1)
        by_key = product(xp, xp.matrix_transpose(ds), queries) + by_value
        added = xp.where((seen & fresh[:, None])[..., None], by_key, xp.zeros_like(by_key))
        dkv = add_at(xp, dkv, xp.reshape(here, (-1,)), xp.reshape(added, (-1, channels)))
        return dkv, (narrow(product(xp, ds, keys), io),)

    elements = ids.shape[1] * max(heads, channels)
    dkv, (dq,) = over_rows(xp, q, rows, elements, step, xp.zeros_like(kv))
    return dq, narrow(dkv, io), -xp.sum(lost, axis=0)
