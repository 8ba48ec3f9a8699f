"""Dense scores with their denominators: the indexer's, and attention's."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.dense import longest_of
from cudnn_fe.attention.dsa.dense_scores.op import ATTENTION, INDEXER
from cudnn_fe.attention.operands import deliver, require_finite
from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.op import Op
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_dense_attn_score_forward", "dsa_dense_indexer_score_forward"]

_RESULTS = ("out", "denom")


def _run(
    op: Op,
    operands: tuple[Any, ...],
    scale: float,
    buffers: tuple[Any, Any],
    longest: tuple[int | None, int | None],
    backend: str | None,
    stream: Any,
    **options: Any,
) -> TupleDict:
    q, k, *others = operands
    lengths = {
        "max_seqlen_q": longest_of(operands[5], longest[0], "max_seqlen_q"),
        "max_seqlen_k": longest_of(operands[6], longest[1], "max_seqlen_k"),
    }
    pairs = tuple({**options, **lengths}.items())
    results = call(op, (packed_pairs(q), packed_pairs(k), *others), pairs, (scale,), backend=backend, stream=stream)
    return TupleDict(zip(_RESULTS, deliver(results, buffers, _RESULTS, stream=stream), strict=True))


def dsa_dense_indexer_score_forward(
    q: Any,
    k: Any,
    weights: Any,
    qhead_per_kv_head: int | None = None,
    out: Any = None,
    denom_out: Any = None,
    sm_scale: float = 1.0,
    ratio: int = 1,
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
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The lightning indexer's score of every key that a query may see, and their log-sum-exp.

    Args:
        q: Queries (B, Sq, Hq, D), or packed (Tq, Hq, D).
        k: Keys (B, Sk, Hkv, D) or (Tk, Hkv, D) of the same dtype.
        weights: Weights of the heads (B, Sq, Hq) or (Tq, Hq).
        qhead_per_kv_head: Hq / Hkv, or None.
        out: Buffer for the scores, which is then returned; None allocates. JAX takes none.
        denom_out: Likewise for the denominators.
        sm_scale: Factor of the scores.
        ratio: Tokens that a key stands for: query r sees ``(offset + r + 1) // ratio`` keys.
        cu_seqlens_q: int32 (B+1,): first query of each packed sequence.
        cu_seqlens_k: int32 (B+1,): first key of each packed sequence.
        max_seqlen_q: The longest packed sequence of queries; None reads it, which waits for the device.
        max_seqlen_k: Likewise for keys: the width of ``out``.
        q_causal_offsets: int32 (B,): the token that each sequence's first query stands at; None is 0.
        precision: ``"bf16"`` for any plain float type, ``"mxfp8"`` or ``"mxfp4"``.
        q_scale: Packed E8M0 scales of block-scaled queries.
        k_scale: Packed E8M0 scales of block-scaled keys.
        cu_seqlens_q_scale_padded: int32 (B+1,): first token of each packed sequence among the packed scales.
        cu_seqlens_k_scale_padded: Likewise for keys.
        sf_vec_size: Channels that share a scale, 32.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` (B, Sq, Sk) or (Tq, max_seqlen_k), float32, minus infinity where hidden, and ``denom`` (B, Sq) or
        (Tq,), the natural log-sum-exp.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    scales = (q_scale, k_scale)
    offsets = (cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_scale_padded, cu_seqlens_k_scale_padded, q_causal_offsets)
    return _run(
        INDEXER,
        (q, k, weights, *scales, *offsets),
        require_finite(sm_scale, "sm_scale"),
        (out, denom_out),
        (max_seqlen_q, max_seqlen_k),
        backend,
        stream,
        ratio=ratio,
        qhead_per_kv_head=qhead_per_kv_head,
        precision=precision,
        sf_vec_size=sf_vec_size,
    )


def dsa_dense_attn_score_forward(
    q: Any,
    k: Any,
    lse: Any,
    softmax_scale: float,
    qhead_per_kv_head: int | None = None,
    out: Any = None,
    denom_out: Any = None,
    ratio: int = 1,
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
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Attention's probability of every key that a query may see, summed over heads, and the row's sum.

    Args:
        q: Queries (B, Sq, Hq, D), or packed (Tq, Hq, D).
        k: Keys (B, Sk, Hkv, D) or (Tk, Hkv, D) of the same dtype.
        lse: float32 (B, Sq, Hq) or (Tq, Hq): natural log-sum-exp of attention.
        softmax_scale: Factor of the scores.
        qhead_per_kv_head: Hq / Hkv, or None.
        out: Buffer for the probabilities, which is then returned; None allocates. JAX takes none.
        denom_out: Likewise for their sums.
        ratio: Tokens that a key stands for.
        cu_seqlens_q: int32 (B+1,): first query of each packed sequence.
        cu_seqlens_k: int32 (B+1,): first key of each packed sequence.
        max_seqlen_q: The longest packed sequence of queries; None reads it, which waits for the device.
        max_seqlen_k: Likewise for keys: the width of ``out``.
        q_causal_offsets: int32 (B,): the token that each sequence's first query stands at; None is 0.
        precision: ``"bf16"`` for any plain float type, or ``"mxfp8"``.
        q_scale: Packed E8M0 scales of block-scaled queries.
        k_scale: Packed E8M0 scales of block-scaled keys.
        cu_seqlens_q_scale_padded: int32 (B+1,): first token of each packed sequence among the packed scales.
        cu_seqlens_k_scale_padded: Likewise for keys.
        sf_vec_size: Channels that share a scale, 32.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` (B, Sq, Sk) or (Tq, max_seqlen_k), float32, minus infinity where hidden, and ``denom`` (B, Sq) or
        (Tq,), the sum of what is visible.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    scales = (q_scale, k_scale)
    offsets = (cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_scale_padded, cu_seqlens_k_scale_padded, q_causal_offsets)
    return _run(
        ATTENTION,
        (q, k, lse, *scales, *offsets),
        require_finite(softmax_scale, "softmax_scale"),
        (out, denom_out),
        (max_seqlen_q, max_seqlen_k),
        backend,
        stream,
        ratio=ratio,
        qhead_per_kv_head=qhead_per_kv_head,
        precision=precision,
        sf_vec_size=sf_vec_size,
    )
