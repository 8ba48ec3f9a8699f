"""The gated attention block with attention to listed blocks of four tokens."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block import lengths_form
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.sparse_op import SPARSE
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gated_attention_block_sparse_forward", "sparse_forward"]


def gated_attention_block_sparse_forward(
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    geometry: GatedAttentionBlockGeometry,
    *,
    block_ids: Any = None,
    block_lens: Any = None,
    w_iq_norm: Any = None,
    w_ik_norm: Any = None,
    seq_lens: Any = None,
    thd: bool = False,
    cu_seqlens: bool = False,
    current_stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """The gated attention block with attention to listed blocks of four tokens, chosen by the caller or an indexer.

    Args:
        h: Hidden states (B, S, d_model), or packed (T, d_model): float16, bfloat16, float32 or float64.
        w_qkvg: First weight, as in `gated_attention_block_forward`, and so are all arguments that both have; the
            indexer's rows last, where the geometry has them.
        w_q_norm: Weight of the queries' norm, or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines of each token.
        sin: Sines.
        w_o: Output projection.
        geometry: Extents and mask, with a `QsaSpec`.
        block_ids: int32 (T, top_k) or (B, S, top_k), with ``index_source="caller"``: blocks of each token, counted in
            its own sequence; what is below 0 names none.
        block_lens: int32 (T,) or (B, S): how many of them count; None for all.
        w_iq_norm: Weight of the norm of the indexer's queries (index_head_dim,), with ``"indexer"``.
        w_ik_norm: Likewise of its keys.
        seq_lens: Keys of padded sequences; lengths or offsets of packed ones.
        thd: Whether h packs sequences.
        cu_seqlens: Whether ``seq_lens`` are offsets.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` like h and ``lse`` (B, Hq, S); ``index_k_raw`` (T, index_head_dim) where the geometry has the indexer's
        columns; with ``"indexer"`` ``index_k_compressed`` (B, S // 4, index_head_dim), of no blocks where sequences are
        packed, ``block_ids_out`` (T, top_k), ascending and then -1, and ``block_lens_out`` (T,). None for the others.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    operands = (h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o, seq_lens)
    lists = (block_ids, block_lens, w_iq_norm, w_ik_norm)
    form = lengths_form(thd, cu_seqlens)
    return sparse_forward((*operands, *lists), geometry, form, stream=current_stream, backend=backend)


def sparse_forward(
    operands: tuple[Any, ...],
    geometry: GatedAttentionBlockGeometry,
    form: str | None,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """`gated_attention_block_sparse_forward`, from its operands in the op's order."""
    options = (("shape", frozen(geometry, sparse=True)), ("form", form))
    results = call(SPARSE, operands, options, (), backend=backend, stream=stream)
    there = ["out", "lse", *(["index_k_raw"] if geometry.index_band else [])]
    there += SPARSE.results[3:] if len(results) > len(there) else []
    found = dict(zip(there, results, strict=True))
    return TupleDict({name: found.get(name) for name in SPARSE.results})
