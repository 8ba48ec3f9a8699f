"""The definition of aligned HCA's gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, narrow, round_through, take, wide
from cudnn_fe.attention.hca.op import GROUP
from cudnn_fe.attention.pieces import by_key, by_query, scores
from cudnn_fe.attention.rows import add_at, over_rows
from cudnn_fe.attention.sinks import sink_share

if TYPE_CHECKING:
    from cudnn_fe.attention.hca.op import AlignedHcaBackward

__all__ = ["backward", "compressed_rows"]


def compressed_rows(xp: Any, tokens: int, cp_size: int, like: Any) -> Any:
    """Rows of the compressed keys in the order of the tokens that they stand for (cp_size G,)."""
    groups = tokens // GROUP
    c = index_range(xp, cp_size * groups, like)
    owner = c // groups
    return tokens + GROUP + owner * (groups + 1) + c % groups + xp.where(owner > 0, xp.ones_like(c), xp.zeros_like(c))


def backward(
    problem: AlignedHcaBackward,
    xp: Any,
    q: Any,
    kv: Any,
    out: Any,
    dout: Any,
    lse: Any,
    sink: Any,
    softmax_scale: float,
) -> tuple[Any, Any, Any]:
    """``(dQ, dKV, d_sink)``, from the forward's results.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (L, H, D).
        kv: Rows: tokens before the chunk, the chunk's, compressed keys.
        out: The forward's output.
        dout: Its gradient.
        lse: The forward's log-sum-exp, without the sink.
        sink: The sinks (H,).
        softmax_scale: Factor of the scores.
    """
    if problem.degenerate:
        return xp.zeros_like(q), xp.zeros_like(kv), xp.zeros_like(sink)
    io = problem.q.dtype.name
    tokens, heads, channels = q.shape
    before = problem.cp_rank * tokens  # tokens of the ranks below
    joined, share = sink_share(xp, lse, sink)
    q, kv, dout = wide(q), wide(kv), wide(dout)
    delta = xp.sum(wide(out) * dout, axis=-1)
    compressed = compressed_rows(xp, tokens, problem.cp_size, q)
    group = index_range(xp, compressed.shape[0], q)

    def heads_first(x: Any, at: Any) -> Any:
        return xp.moveaxis(take(xp, x, at, 0), 1, 0)[None]

    def step(dkv: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        window = at[:1] + index_range(xp, at.shape[0] + GROUP, q)
        token = before + window - GROUP
        near = (window > at[:, None]) & (window <= at[:, None] + GROUP) & (token >= 0)
        far = group < (before + at[:, None] + 1) // GROUP
        seen = xp.concat((near, far), axis=-1) & fresh[:, None]
        rows = xp.concat((xp.clip(window, 0, tokens + GROUP - 1), compressed))
        keys = take(xp, kv, rows, 0)[None, None]
        queries, grads = heads_first(q, at), heads_first(dout, at)
        base, less = heads_first(joined, at)[..., None], heads_first(delta, at)[..., None]
        alive = seen & ~xp.isinf(base)
        p = xp.exp(softmax_scale * scores(xp, queries, keys) - base)
        nothing = xp.zeros_like(p)
        ds = xp.where(alive, p * (scores(xp, grads, keys) - less) * softmax_scale, nothing)
        p, ds = round_through(xp.where(alive, p, nothing), io), round_through(ds, io)
        added = by_key(xp, ds, alive, queries, 1) + by_key(xp, p, alive, grads, 1)
        dq = by_query(xp, ds, alive, keys, signed=True)
        return add_at(xp, dkv, rows, added[0, 0]), (narrow(xp.moveaxis(dq[0], 0, 1), io),)

    elements = heads * max(2 * GROUP + compressed.shape[0], channels)
    dkv, (dq,) = over_rows(xp, q, tokens, elements, step, xp.zeros_like(kv))
    return dq, narrow(dkv, io), -xp.sum(delta * share, axis=0)
