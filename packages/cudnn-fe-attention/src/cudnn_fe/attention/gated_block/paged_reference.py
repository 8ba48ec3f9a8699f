"""The definition of the gated attention block over pages, for any array namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, narrow, product, take, wide
from cudnn_fe.attention.bands import places, within
from cudnn_fe.attention.gated_block.reference import (
    batched,
    gated_output,
    heads_of,
    sequences,
    tables,
    turned,
)
from cudnn_fe.attention.pieces import attend, log_sum_exp
from cudnn_fe.attention.rows import set_rows
from cudnn_fe.attention.sequences import Rows, offsets_of, rows_of
from cudnn_fe.attention.tiles import Visible
from cudnn_fe.core.codecs import encode, from_codes, to_codes
from cudnn_fe.core.dtypes import dtype

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.paged_op import GatedAttentionBlockPaged

__all__ = ["forward", "written"]


def forward(
    problem: GatedAttentionBlockPaged,
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
) -> tuple[Any, ...]:
    """``(out, lse, k_cache, v_cache)``, the pools with the tokens' rows in their slots.

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
        k_cache: Pages of keys (pages, Hkv, P, D).
        v_cache: Pages of values.
        slot_mapping: The slot of every token (T,), page by page; outside writes nothing.
        block_table: Pages of each sequence (B, N), or None.
        kv_lens: Keys of each sequence in its pages (B,), or None.
        k_scale: Factor of E4M3 keys, or None.
        v_scale: Factor of E4M3 values, or None.
    """
    g, io = problem.geometry, problem.cos.dtype.name
    cos, sin = tables(cos), tables(sin)
    x, visible, _ = sequences(problem, xp, wide(batched(h)), seq_lens)
    slab = wide(narrow(product(xp, x, xp.matrix_transpose(wide(w_qkvg))), io))
    heads, _ = heads_of(xp, g, slab, (w_q_norm, w_k_norm), (cos, sin), io)
    k_cache, v_cache = (
        written(xp, pool, slot_mapping, rows, scale)
        for pool, rows, scale in ((k_cache, heads.k, k_scale), (v_cache, heads.v, v_scale))
    )
    q, k, v = (turned(xp, y) for y in (heads.q, heads.k, heads.v))
    if problem.source == "paged":
        k, v = (_pages_of(xp, problem, pool, block_table) for pool in (k_cache, v_cache))
        visible = _seen(xp, problem, q, k, seq_lens, kv_lens)
    o, top, total = attend(xp, q, k, v, visible, g.scale, io)
    out = gated_output(xp, turned(xp, o), heads.gate, w_o, io, problem.h.shape)
    return out, log_sum_exp(xp, top, total), k_cache, v_cache


def written(xp: Any, pool: Any, slots: Any, rows: Any, scale: Any) -> Any:
    """``pool`` (pages, Hkv, P, D) with rows (B, S, Hkv, D) in their slots."""
    pages, heads, size, channels = pool.shape
    kind, fp8 = dtype(pool.dtype).name, scale is not None
    rows = xp.reshape(rows, (slots.shape[0], heads, channels))
    # FP8 goes by its codes: frameworks lack the operations that move its elements.
    stored = encode(rows * (1 / xp.reshape(scale, (1,))), kind) if fp8 else narrow(rows, kind)
    moved = xp.permute_dims(to_codes(pool) if fp8 else pool, (0, 2, 1, 3))
    by_slot = set_rows(xp, xp.reshape(moved, (pages * size, heads, channels)), slots, stored)
    written = xp.permute_dims(xp.reshape(by_slot, (pages, size, heads, channels)), (0, 2, 1, 3))
    return from_codes(written, kind) if fp8 else written


def _pages_of(xp: Any, problem: Any, pool: Any, table: Any) -> Any:
    """Keys or values of all sequences: (B, Hkv, N P, D), or all in one batch where queries are packed."""
    _, heads, size, channels = pool.shape
    count, pages = table.shape
    found = xp.reshape(take(xp, pool, xp.reshape(table, (-1,)), 0), (count, pages, heads, size, channels))
    by_sequence = xp.reshape(xp.permute_dims(found, (0, 2, 1, 3, 4)), (count, heads, pages * size, channels))
    if problem.form is None:
        return wide(by_sequence)
    return wide(xp.reshape(xp.permute_dims(by_sequence, (1, 0, 2, 3)), (1, heads, count * pages * size, channels)))


def _seen(xp: Any, problem: Any, q: Any, k: Any, seq_lens: Any, kv_lens: Any) -> Visible:
    """The mask: keys that the sequence has, none past the query's own, which is the last but those after it."""
    band = replace(problem.geometry.band, bottom_right=True)
    if problem.form is None:
        everywhere = xp.full_like(kv_lens, q.shape[2])
        return within(xp, band, places(xp, q, everywhere, None), places(xp, k, kv_lens, None))
    offsets = offsets_of(xp, seq_lens) if problem.form == "lengths" else seq_lens
    span = k.shape[2] // kv_lens.shape[0]
    row = index_range(xp, k.shape[2], k)
    sequence = row // span
    length = take(xp, xp.clip(kv_lens, 0, span), sequence, 0)
    position = row - sequence * span
    return within(xp, band, rows_of(xp, offsets, q.shape[2]), Rows(sequence, position, length, position < length))
