"""What block-sparse definitions share: the tokens that a list names, attention to them, the indexer's arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, product, round_through, take
from cudnn_fe.attention.gated_block.reference import normed, rotated
from cudnn_fe.attention.pieces import log_sum_exp
from cudnn_fe.attention.rows import list_softmax, over_rows, rows_at

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.declarations import QsaSpec
    from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry

__all__ = ["attended", "index_scores", "index_vectors", "listed_places"]


def listed_places(xp: Any, size: int, chosen: Any, lengths: Any, tail: Any, own: Any, opened: int) -> tuple[Any, Any]:
    """Places that some tokens see, and which of them there are: (M, top_k size + opened).

    Args:
        xp: Array namespace.
        size: Tokens of a block.
        chosen: Blocks of each token (M, top_k); below 0 is none.
        lengths: How many of them count (M,), or None.
        tail: Where each token's open block begins (M,): all from there to its own place is seen.
        own: The token's place (M,).
        opened: Tokens from ``tail`` to ``own`` at most.
    """
    inside = index_range(xp, size, chosen)
    place = xp.reshape(chosen[..., None] * size + inside, (chosen.shape[0], -1))
    counted = chosen >= 0
    if lengths is not None:
        counted = counted & (index_range(xp, chosen.shape[1], chosen) < lengths[:, None])
    counted = xp.reshape(xp.broadcast_to(counted[..., None], (*chosen.shape, size)), place.shape)
    counted = counted & (place < tail[:, None])  # what lies in the open block comes once, below
    last = tail[:, None] + index_range(xp, opened, chosen)
    place, counted = xp.concat((place, last), axis=-1), xp.concat((counted, last >= tail[:, None]), axis=-1)
    return place, counted & (place <= own[:, None]) & (place >= 0)


def attended(
    xp: Any,
    g: GatedAttentionBlockGeometry,
    io: str,
    q: Any,
    tables: tuple[Any, Any],
    seen: Callable[[Any], tuple[Any, Any]],
    span: int,
    read: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
) -> tuple[Any, Any]:
    """O (T, Hq, D) and the log-sum-exp (T, Hq) of tokens that see rows of two tables.

    Args:
        xp: Array namespace.
        g: The block's geometry.
        io: Dtype that probabilities are rounded in.
        q: Queries (T, Hq, D).
        tables: Keys and values (N, Hkv D).
        seen: From the indices of some tokens to the rows that each sees and which of these there are, (M, span) each.
        span: Rows that a token sees at most.
        read: From rows of the tables to keys and to values; None where they are what the tables hold.
    """
    heads, width, count = g.h_kv, g.d_head, q.shape[0]

    def body(carry: Any, rows: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        ids, there = seen(rows)
        found = [rows_at(xp, x, ids, there) for x in tables]
        if read is not None:
            found = [f(x) for f, x in zip(read, found, strict=True)]
        shape = (ids.shape[0], span, heads, width)
        keys, values = (xp.permute_dims(xp.reshape(x, shape), (0, 2, 1, 3)) for x in found)
        query = xp.reshape(take(xp, q, rows, 0), (ids.shape[0], heads, g.gqa_ratio, width))
        s = g.scale * product(xp, query, xp.matrix_transpose(keys))
        p, top, total = list_softmax(xp, s, there[:, None, None, :])
        sums = product(xp, round_through(p, io), values)
        o = xp.where(total == 0, xp.zeros_like(sums), sums / total)
        lse = log_sum_exp(xp, top, total)[..., 0]
        return carry, (xp.reshape(o, (-1, g.h_q, width)), xp.reshape(lse, (-1, g.h_q)))

    if count == 0:
        return q, xp.sum(q, axis=-1)
    o, lse = over_rows(xp, q, count, span * heads * width * 2, body)[1]
    return o, lse


def index_vectors(xp: Any, qsa: QsaSpec, x: Any, weight: Any, rope: tuple[Any, Any], width: int, io: str) -> Any:
    """Queries or keys of the indexer after norm and rotation, rounded once."""
    return round_through(rotated(xp, normed(xp, x, weight, qsa.index_norm_eps)[0], *rope, width), io)


def index_scores(xp: Any, qsa: QsaSpec, query: Any, keys: Any) -> Any:
    """Scores (..., M, N) of query heads (..., M, heads, C) and keys (..., N, C): sums of positive parts."""
    *lead, count, heads, width = query.shape
    dots = product(xp, xp.reshape(query, (*lead, count * heads, width)), xp.matrix_transpose(keys))
    dots = xp.reshape(dots, (*lead, count, heads, keys.shape[-2]))
    return xp.sum(xp.where(dots > 0, dots, xp.zeros_like(dots)), axis=-2) * qsa.index_head_dim**-0.5
