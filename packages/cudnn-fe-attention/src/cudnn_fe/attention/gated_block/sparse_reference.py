"""The definition of the block-sparse gated attention block, for any array namespace.

Tokens of all sequences lie in one row; each attends to a list of tokens of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import astype, index_range, narrow, product, take, wide
from cudnn_fe.attention.gated_block.reference import (
    batched,
    gated_output,
    heads_of,
    tables,
)
from cudnn_fe.attention.gated_block.sparse_pieces import attended, index_scores, index_vectors, listed_places
from cudnn_fe.attention.rows import over_rows
from cudnn_fe.attention.sequences import Rows, offsets_of, rows_of
from cudnn_fe.attention.top_k import along_last, best_first, in_order

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.sparse_op import GatedAttentionBlockSparse

__all__ = ["forward", "with_keys"]


@dataclass(frozen=True)
class _Places:
    """Where tokens stand.

    Attributes:
        rows: The sequence of each token, and its place there.
        start: The row of the sequence's first token.
        keys: Tokens of the sequence that may be seen.
        tail: The place of the first token that is in no whole block before the next token.
    """

    rows: Rows
    start: Any
    keys: Any
    tail: Any


def _places(problem: GatedAttentionBlockSparse, xp: Any, like: Any, seq_lens: Any) -> _Places:
    batch, tokens = problem.extents
    if problem.form is None:
        offsets, limits = index_range(xp, batch + 1, like) * tokens, seq_lens
    else:
        offsets, limits = offsets_of(xp, seq_lens) if problem.form == "lengths" else seq_lens, None
    rows = rows_of(xp, offsets, batch * tokens)
    keys = rows.length if limits is None else xp.minimum(rows.length, take(xp, limits, rows.sequence, 0))
    size = problem.qsa.block_size
    return _Places(rows, take(xp, offsets, rows.sequence, 0), keys, (rows.position + 1) // size * size)


def forward(
    problem: GatedAttentionBlockSparse,
    xp: Any,
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    seq_lens: Any,
    block_ids: Any,
    block_lens: Any,
    w_iq_norm: Any,
    w_ik_norm: Any,
) -> tuple[Any, ...]:
    """The output and the log-sum-exp; with an indexer its keys, raw and compressed, and the lists that it made.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        h: Hidden states (B, S, d_model), or packed.
        w_qkvg: The first weight (n_qkvg, d_model).
        w_q_norm: Weight of the queries' norm (D,), or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines (B, S, rope_dim).
        sin: Sines.
        w_o: The last weight (d_model, Hq D).
        seq_lens: Keys of each sequence, or the packed sequences' lengths or offsets, or None.
        block_ids: Blocks of every token (T, top_k), or None.
        block_lens: How many of them count (T,), or None.
        w_iq_norm: Weight of the indexer's queries' norm, or None.
        w_ik_norm: Weight of its keys' norm, or None.
    """
    operands = (h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o, seq_lens)
    return with_keys(problem, xp, *operands, block_ids, block_lens, w_iq_norm, w_ik_norm)[0]


def with_keys(problem: GatedAttentionBlockSparse, xp: Any, *operands: Any) -> tuple[tuple[Any, ...], Any, Any]:
    """What `forward` returns of its operands, and the tokens' keys and values (T, Hkv, D)."""
    h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o, seq_lens, block_ids, block_lens, w_iq_norm, w_ik_norm = operands
    g, qsa, io = problem.geometry, problem.qsa, problem.cos.dtype.name
    batch, tokens = problem.extents
    count = batch * tokens
    at = _places(problem, xp, wide(h), seq_lens)
    x = xp.reshape(wide(batched(h)), (1, count, g.d_model))
    x = xp.where(at.rows.valid[:, None], x, xp.zeros_like(x))
    cos, sin = (tables(xp.reshape(y, (1, count, g.rope_dim))) for y in (cos, sin))
    slab = wide(narrow(product(xp, x, xp.matrix_transpose(wide(w_qkvg))), io))
    heads, _ = heads_of(xp, g, slab, (w_q_norm, w_k_norm), (cos, sin), io)
    more: list[Any] = []
    if g.index_band:
        index = slab[0, :, g.n_qkvg - qsa.index_band_cols :]
        more.append(narrow(index[:, -qsa.index_head_dim :], io))
    if qsa.index_source == "indexer":
        shape = (count, qsa.index_heads + qsa.index_kv_heads, qsa.index_head_dim)
        block_ids, block_lens, keys = _indexed(
            problem, xp, xp.reshape(index, shape), (w_iq_norm, w_ik_norm), (cos[0], sin[0]), at
        )
        used = tokens // qsa.block_size if problem.form is None else 0
        by_batch = xp.reshape(keys, (batch, tokens, qsa.index_head_dim))
        more += [narrow(by_batch[:, : used * qsa.block_size : qsa.block_size], io), block_ids, block_lens]
    ids = xp.reshape(block_ids, (count, qsa.top_k))
    lengths = None if block_lens is None else xp.reshape(block_lens, (count,))
    o, lse = _attended(problem, xp, (heads.q[0], heads.k[0], heads.v[0]), ids, lengths, at)
    out = gated_output(xp, o[None], heads.gate, w_o, io, problem.h.shape)
    lse = xp.permute_dims(xp.reshape(lse, (batch, tokens, g.h_q)), (0, 2, 1))
    return (out, lse, *more), heads.k[0], heads.v[0]


def _attended(
    problem: GatedAttentionBlockSparse, xp: Any, qkv: tuple[Any, Any, Any], ids: Any, lengths: Any, at: _Places
) -> tuple[Any, Any]:
    """O (T, Hq, D) and the log-sum-exp (T, Hq)."""
    q, k, v = qkv
    qsa, (count, heads, width) = problem.qsa, k.shape
    opened = qsa.block_size - 1  # tokens of an open block

    def seen(rows: Any) -> tuple[Any, Any]:
        own, tail, keys = (take(xp, x, rows, 0) for x in (at.rows.position, at.tail, at.keys))
        chosen, counts = take(xp, ids, rows, 0), None if lengths is None else take(xp, lengths, rows, 0)
        place, there = listed_places(xp, qsa.block_size, chosen, counts, tail, own, opened)
        there = there & (place < keys[:, None]) & take(xp, at.rows.valid, rows, 0)[:, None]
        return take(xp, at.start, rows, 0)[:, None] + place, there

    tables = tuple(xp.reshape(x, (count, heads * width)) for x in (k, v))
    span = qsa.top_k * qsa.block_size + opened
    return attended(xp, problem.geometry, problem.cos.dtype.name, q, tables, seen, span)


def _indexed(
    problem: GatedAttentionBlockSparse,
    xp: Any,
    index: Any,
    weights: tuple[Any, Any],
    rope: tuple[Any, Any],
    at: _Places,
) -> tuple[Any, Any, Any]:
    """The lists of every token, how many of them count, and the compressed key of the block that begins at each."""
    qsa, width, io = problem.qsa, problem.geometry.rope_dim, problem.cos.dtype.name
    size, count = qsa.block_size, index.shape[0]
    lengths = astype(xp.where(at.rows.valid, xp.clip(at.tail // size, 0, qsa.top_k), 0 * at.tail), "int32")
    if count == 0:
        return xp.zeros_like(xp.broadcast_to(lengths[:, None], (0, qsa.top_k))), lengths, index[:, 0]
    query, raw = index[:, : qsa.index_heads], index[:, qsa.index_heads]
    query = index_vectors(xp, qsa, query, weights[0], rope, width, io)
    follow = index_range(xp, count, index)[:, None] + index_range(xp, size, index)
    mean = xp.sum(xp.reshape(take(xp, raw, xp.reshape(follow, (-1,)), 0), (count, size, raw.shape[1])), axis=1) / size
    keys = index_vectors(xp, qsa, mean, weights[1], (rope[0][:, 0], rope[1][:, 0]), width, io)
    begins = (at.rows.position % size == 0) & at.rows.valid
    scored = problem.extents[1] > qsa.identity_bound

    def body(carry: Any, rows: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        one, tail = (take(xp, x, rows, 0)[:, None] for x in (at.rows.sequence, at.tail))
        valid = (
            begins & (at.rows.sequence == one) & (at.rows.position < tail) & take(xp, at.rows.valid, rows, 0)[:, None]
        )
        scores = xp.zeros_like(astype(valid, _sums(problem)))
        if scored:
            scores = index_scores(xp, qsa, take(xp, query, rows, 0), keys)
        _, chosen = best_first(xp, scores, valid, qsa.top_k)
        ids = along_last(xp, xp.broadcast_to(at.rows.position, (chosen.shape[0], count)), xp.clip(chosen, 0, count - 1))
        ids = xp.where(chosen >= 0, astype(ids // size, "int32"), chosen)
        return carry, (in_order(xp, ids),)

    (lists,) = over_rows(xp, index, count, (qsa.index_heads + 4) * count, body)[1]
    return lists, lengths, keys


def _sums(problem: GatedAttentionBlockSparse) -> str:
    return "float64" if problem.cos.dtype.name == "float64" else "float32"
