"""The definition of the block-sparse gated attention block over pages, for any array namespace.

A step's tokens are the last of their sequence's keys. They write their keys and values to pages first, and the
indexer's keys to its ring and, where a block of four is complete, to its pages; then each reads what its list names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import astype, index_range, narrow, product, round_through, take, wide
from cudnn_fe.attention.gated_block.paged_reference import written
from cudnn_fe.attention.gated_block.reference import (
    gated_output,
    heads_of,
    tables,
)
from cudnn_fe.attention.gated_block.sparse_pieces import attended, index_scores, index_vectors, listed_places
from cudnn_fe.attention.gated_block.sparse_reference import with_keys
from cudnn_fe.attention.rows import over_rows, rows_at, set_rows
from cudnn_fe.attention.top_k import best_first
from cudnn_fe.core.codecs import decode, encode, from_codes, to_codes
from cudnn_fe.core.dtypes import dtype

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.sparse_paged_op import GatedAttentionBlockPagedSparse

__all__ = ["forward"]


@dataclass(frozen=True)
class _Steps:
    """Where a step's tokens stand.

    Attributes:
        sequence: The sequence of each token (T,).
        place: Its place there; below 0 where the sequence has fewer keys than the step has tokens.
        tail: Where its open block begins.
        table: Pages of each sequence (B, N).
        size: Tokens of a page.
        pages: Pages of a pool.
    """

    sequence: Any
    place: Any
    tail: Any
    table: Any
    size: int
    pages: int

    def rows(self, xp: Any, sequence: Any, place: Any, per_page: int) -> tuple[Any, Any]:
        """Rows of a pool with ``per_page`` rows a page, and whether the table reaches them.

        Args:
            xp: Array namespace.
            sequence: Sequences (M,).
            place: Places in these, counted in rows of the pool: (M, K).
            per_page: Rows of a page.
        """
        count = self.table.shape[1]
        column = xp.clip(place // per_page, 0, count - 1)
        page = take(xp, xp.reshape(self.table, (-1,)), xp.reshape(sequence[:, None] * count + column, (-1,)), 0)
        page = xp.reshape(page, place.shape)
        inside = (place >= 0) & (place < count * per_page) & (page >= 0) & (page < self.pages)
        return page * per_page + place % per_page, inside


def forward(
    problem: GatedAttentionBlockPagedSparse,
    xp: Any,
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    seq_lens: Any,
    k_cache: Any,
    v_cache: Any,
    slot_mapping: Any,
    block_table: Any,
    kv_lens: Any,
    k_scale: Any,
    v_scale: Any,
    block_ids: Any,
    block_lens: Any,
    w_iq_norm: Any,
    w_ik_norm: Any,
    index_kv_cache: Any,
    index_state_cache: Any,
    index_state_block_table: Any,
    index_state_slot_mapping: Any,
    cos_pos: Any,
    sin_pos: Any,
) -> tuple[Any, ...]:
    """The results that `present` of the contract names.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        h: Hidden states (B, S, d_model), or packed.
        w_qkvg: The first weight (n_qkvg, d_model).
        w_q_norm: Weight of the queries' norm (D,), or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines (B, S, rope_dim), or None.
        sin: Sines, or None.
        w_o: The last weight (d_model, Hq D).
        seq_lens: Lengths or offsets of a prompt's sequences, or None.
        k_cache: Pages of keys (pages, Hkv, P, D).
        v_cache: Pages of values.
        slot_mapping: The slot of every token (T,), page by page.
        block_table: Pages of each sequence (B, N), or None.
        kv_lens: Keys of each sequence in its pages (B,), or None.
        k_scale: Factor of E4M3 keys, or None.
        v_scale: Factor of E4M3 values, or None.
        block_ids: Blocks of every token or every sequence, or None.
        block_lens: How many of them count, or None.
        w_iq_norm: Weight of the indexer's queries' norm, or None.
        w_ik_norm: Weight of its keys' norm, or None.
        index_kv_cache: Pages of the indexer's keys (pages, P / 4, 1, C), or None.
        index_state_cache: Rings of its keys as they are projected (blocks, capacity, 1, C), or None.
        index_state_block_table: The ring of each sequence (B, 1), or None.
        index_state_slot_mapping: The rings' row of every token (T,), or None.
        cos_pos: Cosines of every place (1 or B, L, rope_dim), or None.
        sin_pos: Sines, or None.
    """
    g, qsa, io = problem.geometry, problem.qsa, problem.h.dtype.name
    operands = (w_qkvg, w_q_norm, w_k_norm)
    if problem.source == "self":
        lists = (block_ids, block_lens, w_iq_norm, w_ik_norm)
        results, k, v = with_keys(problem.own, xp, h, *operands, cos, sin, w_o, seq_lens, *lists)
        pools = _pools(xp, (k_cache, v_cache), slot_mapping, (k, v), (k_scale, v_scale))
        return (*results[:2], *pools, *results[2:])
    batch, tokens = problem.extents
    count, size = batch * tokens, qsa.block_size
    row = index_range(xp, count, kv_lens)
    place = take(xp, kv_lens, row // tokens, 0) - tokens + row % tokens
    at = _Steps(row // tokens, place, (place + 1) // size * size, block_table, k_cache.shape[2], k_cache.shape[0])
    if cos is None:
        cos, sin = (_of_places(xp, x, at.sequence, place) for x in (cos_pos, sin_pos))
    cos, sin = (tables(xp.reshape(x, (1, count, g.rope_dim))) for x in (cos, sin))
    x = xp.reshape(wide(h), (1, count, g.d_model))
    slab = wide(narrow(product(xp, x, xp.matrix_transpose(wide(w_qkvg))), io))
    heads, _ = heads_of(xp, g, slab, (w_q_norm, w_k_norm), (cos, sin), io)
    pools = _pools(xp, (k_cache, v_cache), slot_mapping, (heads.k[0], heads.v[0]), (k_scale, v_scale))
    more: list[Any] = []
    if g.index_band:
        index = xp.reshape(slab[0, :, g.n_qkvg - qsa.index_band_cols :], (count, -1, qsa.index_head_dim))
    if qsa.index_source == "indexer":
        ring = (index_state_cache, index_state_block_table, index_state_slot_mapping)
        keys, ring_rows = _kept(problem, xp, index[:, -1], w_ik_norm, index_kv_cache, ring, (cos_pos, sin_pos), at)
        query = index_vectors(xp, qsa, index[:, : qsa.index_heads], w_iq_norm, (cos[0], sin[0]), g.rope_dim, io)
        block_ids, counts = _chosen(problem, xp, query, keys, at)
        block_lens, more = None, [keys, ring_rows, block_ids, counts]
    elif g.index_band:
        more = [narrow(index[:, -1], io)]
    o, lse = _read(problem, xp, heads.q[0], pools, (k_scale, v_scale), (block_ids, block_lens), at)
    out = gated_output(xp, o[None], heads.gate, w_o, io, problem.h.shape)
    lse = xp.permute_dims(xp.reshape(lse, (batch, tokens, g.h_q)), (0, 2, 1))
    return (out, lse, *pools, *more)


def _pools(
    xp: Any, pools: tuple[Any, Any], slots: Any, rows: tuple[Any, Any], scales: tuple[Any, Any]
) -> tuple[Any, ...]:
    return tuple(written(xp, *four) for four in zip(pools, (slots, slots), rows, scales, strict=True))


def _of_places(xp: Any, table: Any, sequence: Any, place: Any) -> Any:
    """Rows of (1 or B, L, R) at places of sequences: (M, R)."""
    count, length, width = table.shape
    first = sequence * length if count > 1 else 0 * sequence
    return take(xp, xp.reshape(table, (count * length, width)), first + xp.clip(place, 0, length - 1), 0)


def _flat(xp: Any, pool: Any) -> Any:
    """Keys or values, or their codes, by slot: (pages P, Hkv D)."""
    pages, heads, size, channels = pool.shape
    held = to_codes(pool) if dtype(pool.dtype).is_fp8 else pool
    return xp.reshape(xp.permute_dims(held, (0, 2, 1, 3)), (pages * size, heads * channels))


def _read(
    problem: GatedAttentionBlockPagedSparse,
    xp: Any,
    q: Any,
    pools: tuple[Any, ...],
    scales: tuple[Any, Any],
    lists: tuple[Any, Any],
    at: _Steps,
) -> tuple[Any, Any]:
    """O (T, Hq, D) and the log-sum-exp (T, Hq)."""
    qsa, io, (batch, tokens) = problem.qsa, problem.h.dtype.name, problem.extents
    size, shared = qsa.block_size, problem.shared
    listed = at.sequence if shared else index_range(xp, batch * tokens, q)
    ids = xp.reshape(lists[0], (-1, qsa.top_k))
    lengths = None if lists[1] is None else xp.reshape(lists[1], (-1,))
    opened = size - 1 + (tokens - 1 if shared else 0)
    # Tokens that share a list see all from the open block of the first one on.
    tail = take(xp, at.tail, at.sequence * tokens, 0) if shared else at.tail
    tail = xp.clip(tail, 0)

    def seen(rows: Any) -> tuple[Any, Any]:
        of = take(xp, listed, rows, 0)
        chosen, counts = take(xp, ids, of, 0), None if lengths is None else take(xp, lengths, of, 0)
        places = take(xp, tail, rows, 0), take(xp, at.place, rows, 0)
        place, there = listed_places(xp, size, chosen, counts, *places, opened)
        found, inside = at.rows(xp, take(xp, at.sequence, rows, 0), place, at.size)
        return found, there & inside

    def reader(scale: Any) -> Any:
        if scale is None:
            return wide
        return lambda codes: round_through(decode(codes, "float8_e4m3fn") * xp.reshape(scale, (1,)), io)

    flat_pools = tuple(_flat(xp, pool) for pool in pools)
    readers = (reader(scales[0]), reader(scales[1]))
    return attended(xp, problem.geometry, io, q, flat_pools, seen, qsa.top_k * size + opened, readers)


def _kept(
    problem: GatedAttentionBlockPagedSparse,
    xp: Any,
    raw: Any,
    weight: Any,
    compressed: Any,
    ring: tuple[Any, Any, Any],
    rope: tuple[Any, Any],
    at: _Steps,
) -> tuple[Any, Any]:
    """The indexer's pages and rings with what a step adds to them.

    The mean of a block that a token completes is of this step's keys and, before it, of the ring's.
    """
    qsa, io, (batch, tokens) = problem.qsa, problem.h.dtype.name, problem.extents
    size, count, width = qsa.block_size, batch * tokens, qsa.index_head_dim
    held, table, slots = ring
    blocks, capacity = held.shape[:2]
    by_row = xp.reshape(held, (blocks * capacity, width))
    first = take(xp, xp.reshape(table, (-1,)), at.sequence, 0) * capacity
    back = index_range(xp, size, raw) - (size - 1)
    before = at.place[:, None] + back  # places of the block that may end here
    step = index_range(xp, count, raw)[:, None] + back
    inside = step >= (at.sequence * tokens)[:, None]
    own = xp.reshape(take(xp, raw, xp.reshape(step, (-1,)), 0), (count, size, width))
    old = xp.reshape(take(xp, by_row, xp.reshape(first[:, None] + before % capacity, (-1,)), 0), (count, size, width))
    mean = xp.sum(xp.where(inside[..., None], own, wide(old)), axis=1) / size
    block = at.place // size
    cos, sin = (wide(_of_places(xp, x, at.sequence, block * size)) for x in rope)
    keys = index_vectors(xp, qsa, mean, weight, (cos, sin), problem.geometry.rope_dim, io)
    complete = (at.place >= 0) & ((at.place + 1) % size == 0)
    per_page = at.size // size
    rows, reached = at.rows(xp, at.sequence, block[:, None], per_page)
    rows = xp.where(complete & reached[:, 0], rows[:, 0], xp.full_like(rows[:, 0], -1))
    if slots is None:
        slots = xp.where(at.place >= 0, first + at.place % capacity, xp.full_like(first, -1))
    new_ring = xp.reshape(set_rows(xp, by_row, slots, narrow(raw, io)), held.shape)
    kind, fp8 = dtype(compressed.dtype).name, dtype(compressed.dtype).is_fp8
    table_of_keys = xp.reshape(to_codes(compressed) if fp8 else compressed, (at.pages * per_page, width))
    stored = encode(keys, kind) if fp8 else narrow(keys, kind)
    pages = xp.reshape(set_rows(xp, table_of_keys, rows, stored), compressed.shape)
    return from_codes(pages, kind) if fp8 else pages, new_ring


def _chosen(
    problem: GatedAttentionBlockPagedSparse, xp: Any, query: Any, compressed: Any, at: _Steps
) -> tuple[Any, Any]:
    """The best blocks of every token (T, top_k), descending and then -1, and how many there are."""
    qsa, count = problem.qsa, query.shape[0]
    per_page = at.size // qsa.block_size
    whole = xp.clip(at.tail // qsa.block_size, 0)  # complete blocks that each token may choose
    counts = astype(xp.clip(whole, 0, qsa.top_k), "int32")
    if count == 0:
        return xp.zeros_like(xp.broadcast_to(counts[:, None], (0, qsa.top_k))), counts
    (batch, tokens), width = problem.extents, qsa.index_head_dim
    blocks = at.table.shape[1] * per_page
    fp8 = dtype(compressed.dtype).is_fp8
    rows = xp.reshape(to_codes(compressed) if fp8 else compressed, (at.pages * per_page, width))
    block = index_range(xp, blocks, query)
    sequences = index_range(xp, batch, query)
    found, reached = at.rows(xp, sequences, xp.broadcast_to(block, (batch, blocks)), per_page)
    longest = take(xp, whole, sequences * tokens + tokens - 1, 0)[:, None]
    keys = rows_at(xp, rows, found, reached & (block < longest))
    keys = decode(keys, "float8_e4m3fn") if fp8 else wide(keys)
    query = xp.reshape(query, (batch, tokens, qsa.index_heads, width))
    whole, reached = xp.reshape(whole, (batch, tokens)), reached[:, None]

    def body(carry: Any, steps: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        """Of the same tokens of all sequences."""
        valid = (block < take(xp, whole, steps, 1)[..., None]) & reached
        scores = index_scores(xp, qsa, take(xp, query, steps, 1), keys)
        _, best = best_first(xp, scores, valid, qsa.top_k)
        return carry, (xp.permute_dims(-xp.sort(-best, axis=-1), (1, 0, 2)),)

    (lists,) = over_rows(xp, query, tokens, batch * (qsa.index_heads + 2) * blocks, body)[1]
    return xp.reshape(xp.permute_dims(lists, (1, 0, 2)), (count, qsa.top_k)), counts
