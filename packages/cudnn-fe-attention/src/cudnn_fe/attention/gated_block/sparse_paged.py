"""The block-sparse gated attention block in serving: keys, values and the indexer's keys in pages."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block import lengths_form
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.paged_op import KV_SOURCE_SELF
from cudnn_fe.attention.gated_block.sparse_paged_op import CACHES, SPARSE_PAGED, present
from cudnn_fe.attention.operands import deliver
from cudnn_fe.core.call import call
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gated_attention_block_paged_sparse_forward", "sparse_paged_forward"]

_WRITTEN = ("k_cache", "v_cache", *CACHES[:2])


def gated_attention_block_paged_sparse_forward(
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    geometry: GatedAttentionBlockGeometry,
    k_cache: Any,
    v_cache: Any,
    slot_mapping: Any,
    *,
    kv_source: str = KV_SOURCE_SELF,
    block_table: Any = None,
    kv_lens: Any = None,
    seq_lens: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    block_ids: Any = None,
    block_lens: Any = None,
    w_iq_norm: Any = None,
    w_ik_norm: Any = None,
    index_kv_cache: Any = None,
    index_state_cache: Any = None,
    index_state_block_table: Any = None,
    index_state_slot_mapping: Any = None,
    cos_pos: Any = None,
    sin_pos: Any = None,
    thd: bool = False,
    cu_seqlens: bool = False,
    current_stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """The block-sparse gated attention block in serving: prompts write pages, steps and chunks read them too.

    Args:
        h: Hidden states (B, S, d_model), or a packed prompt (T, d_model): float16, bfloat16, float32 or float64.
        w_qkvg: First weight, as in `gated_attention_block_sparse_forward`, and so are all arguments that both have.
        w_q_norm: Weight of the queries' norm, or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines of each token at its place in its whole sequence; None with ``"paged"`` reads ``cos_pos``.
        sin: Sines, likewise.
        w_o: Output projection.
        geometry: Extents and mask, with a `QsaSpec`; ``causal_bottom_right`` with ``kv_source="paged"``.
        k_cache: Pages of keys (pages, Hkv, P, D), P a multiple of 16: the dtype of h, or E4M3; channels contiguous.
        v_cache: Pages of values, likewise.
        slot_mapping: int32 or int64 (T,): the slot of every token, page by page; outside the pool writes nothing.
        kv_source: ``"self"``: a prompt, whose tokens see those of the call; ``"paged"``: those in the pages.
        block_table: int32 (B, N): pages of each sequence, with ``"paged"``.
        kv_lens: int32 (B,): keys of each sequence in its pages, these included, with ``"paged"``.
        seq_lens: Lengths of a prompt's sequences.
        k_scale: One float32 number: what E4M3 keys are multiplied by when they are read.
        v_scale: Likewise of values.
        block_ids: int32: lists of every token, or (B, top_k) of every sequence where its tokens share one.
        block_lens: int32: how many of them count; None for all.
        w_iq_norm: Weight of the norm of the indexer's queries, with ``"indexer"``.
        w_ik_norm: Likewise of its keys.
        index_kv_cache: The indexer's keys (pages, P / 4, 1, index_head_dim), with ``"indexer"`` and ``"paged"``, as the
            rest: the dtype of h, or what ``index_cache_dtype`` says.
        index_state_cache: Rings of its raw keys (blocks, capacity, 1, index_head_dim), capacity at least S + 3.
        index_state_block_table: int32 (B, 1): the ring of each sequence.
        index_state_slot_mapping: The rings' row of every token (T,), like ``slot_mapping``; None for ``block *
            capacity + place % capacity``.
        cos_pos: Cosines of every place (1 or B, N P or more, rope_dim).
        sin_pos: Sines.
        thd: Whether h packs the sequences of a prompt.
        cu_seqlens: Whether ``seq_lens`` are offsets.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` like h, ``lse`` (B, Hq, S); ``k_cache``, ``v_cache`` and, of steps with an indexer, ``index_kv_cache``
        and ``index_state_cache``: the caller's, written to, of torch and NumPy; new arrays of JAX. ``index_k_raw`` and
        ``index_k_compressed`` of prompts, ``block_ids_out`` and ``block_lens_out``, as in
        `gated_attention_block_sparse_forward`, the lists of steps descending. None for those that there are not.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    operands = (h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o, seq_lens)
    pages = (k_cache, v_cache, slot_mapping, block_table, kv_lens, k_scale, v_scale)
    lists = (block_ids, block_lens, w_iq_norm, w_ik_norm)
    caches = (index_kv_cache, index_state_cache, index_state_block_table, index_state_slot_mapping, cos_pos, sin_pos)
    form = lengths_form(thd, cu_seqlens)
    given = (*operands, *pages, *lists, *caches)
    return sparse_paged_forward(given, geometry, form, kv_source, stream=current_stream, backend=backend)


def sparse_paged_forward(
    operands: tuple[Any, ...],
    geometry: GatedAttentionBlockGeometry,
    form: str | None,
    source: str,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """`gated_attention_block_paged_sparse_forward`, from its operands in the op's order."""
    options = (("shape", frozen(geometry, sparse=True)), ("form", form), ("source", source))
    results = call(SPARSE_PAGED, operands, options, (), backend=backend, stream=stream)
    names = present(geometry, source)
    found = dict(zip(names, results, strict=True))
    given = dict(zip(SPARSE_PAGED.problem.operands, operands, strict=True))
    if framework_of(given["k_cache"], operand="k_cache") in ("torch", "numpy"):
        kept = [name for name in _WRITTEN if name in found]
        placed = deliver(
            tuple(found[name] for name in kept), tuple(given[name] for name in kept), tuple(kept), stream=stream
        )
        found.update(zip(kept, placed, strict=True))
    return TupleDict({name: found.get(name) for name in SPARSE_PAGED.results})
