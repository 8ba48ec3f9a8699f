"""The lightning indexer: dense scores of compressed keys, and the best keys of every query."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.indexer.candidates import check_candidates, check_window
from cudnn_fe.attention.dsa.indexer.op import FORWARD, TOP_K
from cudnn_fe.attention.dsa.indexer.operands import check_tiles
from cudnn_fe.attention.operands import deliver, require_finite
from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_indexer_forward", "dsa_indexer_fused_top_k_forward"]


def dsa_indexer_forward(
    q: Any,
    k: Any,
    w: Any,
    ratio: int = 4,
    qhead_per_kv_head: int | None = None,
    m_block_size: int = 128,
    n_block_size: int = 128,
    q_stage: int = 2,
    kv_stage: int = 4,
    sm_scale: float = 1.0,
    out: Any = None,
    stream: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    q_causal_offsets: Any = None,
    precision: str = "bf16",
    q_scale: Any = None,
    k_scale: Any = None,
    cu_seqlens_q_scale_padded: Any = None,
    cu_seqlens_k_scale_padded: Any = None,
    sf_vec_size: int = 32,
    return_lse: bool = False,
    lse_out: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Scores every compressed key that a query may see: ``sm_scale * sum_h max(q_h . k, 0) w_h``.

    Args:
        q: Queries (B, Sq, Hq, D), or packed (Tq, Hq, D).
        k: Keys (B, Sk, 1, D) or (Tk, 1, D) of the same dtype.
        w: Weights of the heads (B, Sq, Hq) or (Tq, Hq).
        ratio: Tokens that a key stands for: query r sees ``(offset + r + 1) // ratio`` keys.
        qhead_per_kv_head: Hq, or None.
        m_block_size: Hint without effect on results.
        n_block_size: Hint without effect on results.
        q_stage: Hint, 2.
        kv_stage: Hint without effect on results.
        sm_scale: Factor of the scores.
        out: Buffer for the scores, which is then returned; None allocates. JAX takes none.
        stream: Launch stream for CUDA tensors.
        cu_seqlens_q: int32 (B+1,): first query of each packed sequence.
        cu_seqlens_k: int32 (B+1,): first key of each packed sequence.
        max_seqlen_q: The longest packed sequence of queries.
        max_seqlen_k: The longest packed sequence of keys, which is the width of the scores.
        q_causal_offsets: int32 (B,): the token that each sequence's first query stands at; None is 0.
        precision: ``"bf16"`` for any plain float type, ``"fp8"``, ``"mxfp8"`` or ``"mxfp4"``.
        q_scale: ``"fp8"``: float32 factors (B, Sq, Hq) or (Tq, Hq). Block-scaled: packed E8M0 scales.
        k_scale: ``"fp8"``: float32 factors (B, Sk, 1) or (Tk, 1). Block-scaled: packed E8M0 scales.
        cu_seqlens_q_scale_padded: int32 (B+1,): first token of each packed sequence among the packed scales.
        cu_seqlens_k_scale_padded: Likewise for keys.
        sf_vec_size: Channels that share a scale, 32.
        return_lse: Whether the scores' log-sum-exp comes too.
        lse_out: Buffer for it.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``scores`` (B, Sq, Sk) or (Tq, max_seqlen_k), float32, minus infinity where hidden, and with ``return_lse``
        ``lse`` (B, Sq) or (Tq,).

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    check_tiles(m_block_size, n_block_size, q_stage, kv_stage)
    operands = (
        *(packed_pairs(x) for x in (q, k)),
        w,
        q_scale,
        k_scale,
        cu_seqlens_q,
        cu_seqlens_k,
        cu_seqlens_q_scale_padded,
        cu_seqlens_k_scale_padded,
        q_causal_offsets,
    )
    options = (
        ("ratio", ratio),
        ("qhead_per_kv_head", qhead_per_kv_head),
        ("max_seqlen_q", max_seqlen_q),
        ("max_seqlen_k", max_seqlen_k),
        ("precision", precision),
        ("sf_vec_size", sf_vec_size),
        ("return_lse", return_lse if lse_out is None else True),
    )
    results = call(FORWARD, operands, options, (require_finite(sm_scale, "sm_scale"),), backend=backend, stream=stream)
    names = ("scores", "lse")[: len(results)]
    placed = deliver(results, (out, lse_out)[: len(results)], names, stream=stream)
    return TupleDict(list(zip(names, placed, strict=True))[: 2 if return_lse else 1])


def dsa_indexer_fused_top_k_forward(
    q: Any,
    k: Any,
    w: Any,
    top_k: int,
    ratio: int = 4,
    qhead_per_kv_head: int | None = None,
    m_block_size: int = 128,
    n_block_size: int = 128,
    q_stage: int = 2,
    kv_stage: int = 4,
    sm_scale: float = 1.0,
    stream: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    q_causal_offsets: Any = None,
    precision: str = "bf16",
    q_scale: Any = None,
    k_scale: Any = None,
    cu_seqlens_q_scale_padded: Any = None,
    cu_seqlens_k_scale_padded: Any = None,
    sf_vec_size: int = 32,
    return_lse: bool = False,
    lse_out: Any = None,
    return_softmax: bool | None = None,
    softmax_out: Any = None,
    microbatch_rows: int = -1,
    topk_indices_global: bool = True,
    cand_buffer: Any = None,
    out_indices: Any = None,
    out_logits: Any = None,
    cand_batch_offsets: Any = None,
    deterministic: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The best compressed keys of every query by the scores of `dsa_indexer_forward`, without a matrix of them.

    Args:
        q: As in `dsa_indexer_forward`, and so are all arguments that both have.
        k: Keys.
        w: Weights of the heads.
        top_k: Keys to return, 1..2048.
        ratio: Tokens that a key stands for.
        qhead_per_kv_head: Hq, or None.
        m_block_size: Hint without effect on results.
        n_block_size: Hint without effect on results.
        q_stage: Hint, 2.
        kv_stage: Hint without effect on results.
        sm_scale: Factor of the scores.
        stream: Launch stream for CUDA tensors.
        cu_seqlens_q: First query of each packed sequence.
        cu_seqlens_k: First key of each packed sequence.
        max_seqlen_q: The longest packed sequence of queries.
        max_seqlen_k: The longest packed sequence of keys.
        q_causal_offsets: The token that each sequence's first query stands at.
        precision: ``"bf16"``, ``"fp8"``, ``"mxfp8"`` or ``"mxfp4"``.
        q_scale: Factors or packed scales of the queries.
        k_scale: Factors or packed scales of the keys.
        cu_seqlens_q_scale_padded: First token of each packed sequence among the packed scales.
        cu_seqlens_k_scale_padded: Likewise for keys.
        sf_vec_size: Channels that share a scale, 32.
        return_lse: Whether the log-sum-exp of all visible scores comes too.
        lse_out: Buffer for it.
        return_softmax: Whether the softmax over the returned scores comes too; None means True.
        softmax_out: Buffer for it.
        microbatch_rows: Queries of a launch of padded plain operands: -1 chooses, 0 is one launch; a hint.
        topk_indices_global: Whether ids count all keys, or those of the sequence.
        cand_buffer: float32 scratch of `compress_topk_cand_buffer_size` elements; a hint.
        out_indices: Buffer for the ids.
        out_logits: Buffer for the scores.
        cand_batch_offsets: int64 (B+1,) of `compress_topk_cand_buffer_size_thd`; a hint.
        deterministic: Whether equal scores at the cut must be taken by the smallest ids; they are in either case.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``indices`` int32 and ``logits`` (B, Sq, top_k) or (Tq, top_k), best first, -1 and minus infinity where there
        are fewer; then ``softmax`` and ``lse`` as far as asked for.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    check_tiles(m_block_size, n_block_size, q_stage, kv_stage)
    packed = cu_seqlens_q is not None
    spec = spec_of(q, "q")
    spec.require_rank(3 if packed else 4, "(Tq, Hq, D)" if packed else "(B, Sq, Hq, D)")
    check_window(
        microbatch_rows, spec.shape[1], ratio, packed, precision, return_lse or lse_out is not None, q_causal_offsets
    )
    check_candidates(
        cand_buffer, cand_batch_offsets, q, k, ratio, microbatch_rows, return_lse, q_causal_offsets, precision, packed
    )
    operands = (
        *(packed_pairs(x) for x in (q, k)),
        w,
        q_scale,
        k_scale,
        cu_seqlens_q,
        cu_seqlens_k,
        cu_seqlens_q_scale_padded,
        cu_seqlens_k_scale_padded,
        q_causal_offsets,
    )
    softmax = softmax_out is not None or return_softmax is None or return_softmax
    options = (
        ("ratio", ratio),
        ("qhead_per_kv_head", qhead_per_kv_head),
        ("max_seqlen_q", max_seqlen_q),
        ("max_seqlen_k", max_seqlen_k),
        ("precision", precision),
        ("sf_vec_size", sf_vec_size),
        ("top_k", top_k),
        ("return_lse", return_lse if lse_out is None else True),
        ("return_softmax", softmax),
        ("topk_indices_global", topk_indices_global),
        ("deterministic", deterministic),
    )
    results = call(TOP_K, operands, options, (require_finite(sm_scale, "sm_scale"),), backend=backend, stream=stream)
    names = ["indices", "logits", *(["softmax"] if softmax else []), *(["lse"] if len(results) > 2 + softmax else [])]
    buffers = {"indices": out_indices, "logits": out_logits, "softmax": softmax_out, "lse": lse_out}
    placed = deliver(results, tuple(buffers[name] for name in names), tuple(names), stream=stream)
    pairs = [pair for pair in zip(names, placed, strict=True) if pair[0] != "lse" or return_lse]
    return TupleDict(pairs)
