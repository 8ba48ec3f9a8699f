"""Gradients of the indexer's KL loss: over listed keys, and over all visible ones."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.dense import longest_of
from cudnn_fe.attention.dsa.indexer_backward.op import DENSE, SPARSE
from cudnn_fe.attention.operands import deliver, require_finite
from cudnn_fe.core.call import call
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_dense_indexer_backward", "dsa_indexer_backward"]

_RESULTS = ("d_index_q", "d_weights", "d_index_k", "d_score")


def _keys_dtype(buffer: Any) -> str | None:
    return None if buffer is None else spec_of(buffer, "d_index_k").dtype.name


def _delivered(results: tuple[Any, ...], buffers: tuple[Any, ...], stream: Any) -> TupleDict:
    return TupleDict(zip(_RESULTS, deliver(results, buffers, _RESULTS, stream=stream), strict=True))


def dsa_indexer_backward(
    index_q: Any,
    weights: Any,
    index_k: Any,
    attn_score: Any,
    index_score: Any,
    topk_indices: Any,
    grad_loss: Any,
    sm_scale: float = 1.0,
    loss_coeff: float = 1.0,
    topk_indices_global: bool = False,
    d_index_q: Any = None,
    d_weights: Any = None,
    d_index_k: Any = None,
    d_score: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of the indexer's KL loss between target and predicted probabilities at listed keys.

    Args:
        index_q: Queries (B, Sq, H, D): float16, bfloat16, float32 or float64.
        weights: Weights of the heads (B, Sq, H), of the same dtype or float32.
        index_k: Keys (B, Sk, D).
        attn_score: float32 (B, Sq, K): target probabilities.
        index_score: float32 (B, Sq, K): predicted probabilities, 0 at slots without a key.
        topk_indices: int32 or int64 (B, Sq, K): the keys of each query; negative ids are no slots.
        grad_loss: float32, one element: gradient of the loss; read on the device.
        sm_scale: Factor of the scores.
        loss_coeff: Factor of the loss, which is a mean over queries.
        topk_indices_global: Whether ids count the keys of all batches.
        d_index_q: Buffer for the gradient of the queries, which is then returned; None allocates. JAX takes none.
        d_weights: Likewise for the weights.
        d_index_k: Likewise for the keys, in their dtype or float32.
        d_score: Likewise for the scores.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``d_index_q``, ``d_weights``, ``d_index_k`` and float32 ``d_score`` (B, Sq, K), the scores' gradient.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    operands = (index_q, weights, index_k, attn_score, index_score, topk_indices, grad_loss)
    options = (("topk_indices_global", topk_indices_global), ("dk_dtype", _keys_dtype(d_index_k)))
    scalars = (require_finite(sm_scale, "sm_scale"), require_finite(loss_coeff, "loss_coeff"))
    results = call(SPARSE, operands, options, scalars, backend=backend, stream=stream)
    return _delivered(results, (d_index_q, d_weights, d_index_k, d_score), stream)


def dsa_dense_indexer_backward(
    index_q: Any,
    weights: Any,
    index_k: Any,
    attn_score: Any,
    attn_l1norm: Any,
    index_score: Any,
    index_lse: Any,
    grad_loss: Any,
    sm_scale: float = 1.0,
    loss_coeff: float = 1.0,
    ratio: int = 1,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    q_causal_offsets: Any = None,
    d_index_q: Any = None,
    d_weights: Any = None,
    d_index_k: Any = None,
    d_score: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of the indexer's KL loss over all visible keys.

    Args:
        index_q: Queries (B, Sq, H, D), or packed (Tq, H, D): float16, bfloat16, float32 or float64.
        weights: Weights of the heads (B, Sq, H) or (Tq, H), of the same dtype or float32.
        index_k: Keys (B, Sk, D) or (Tk, D).
        attn_score: float32 (B, Sq, Sk) or (Tq, max_seqlen_k): attention's probabilities, summed over heads.
        attn_l1norm: float32 (B, Sq) or (Tq,): their sum.
        index_score: The indexer's scores, of the shape of ``attn_score``.
        index_lse: float32 (B, Sq) or (Tq,): their log-sum-exp.
        grad_loss: float32, one element: gradient of the loss; read on the device.
        sm_scale: Factor of the scores.
        loss_coeff: Factor of the loss, which is a mean over queries.
        ratio: Tokens that a key stands for.
        cu_seqlens_q: int32 (B+1,): first query of each packed sequence.
        cu_seqlens_k: int32 (B+1,): first key of each packed sequence.
        max_seqlen_q: The longest packed sequence of queries; None reads it, which waits for the device.
        max_seqlen_k: Likewise for keys.
        q_causal_offsets: int32 (B,): the token that each sequence's first query stands at; None is 0.
        d_index_q: Buffer for the gradient of the queries, which is then returned; None allocates. JAX takes none.
        d_weights: Likewise for the weights.
        d_index_k: Likewise for the keys, in their dtype or float32.
        d_score: Likewise for the scores.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``d_index_q``, ``d_weights``, ``d_index_k`` and float32 ``d_score``, the scores' gradient, 0 where hidden.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    operands = (
        index_q,
        weights,
        index_k,
        attn_score,
        attn_l1norm,
        index_score,
        index_lse,
        grad_loss,
        cu_seqlens_q,
        cu_seqlens_k,
        q_causal_offsets,
    )
    options = (
        ("ratio", ratio),
        ("max_seqlen_q", longest_of(cu_seqlens_q, max_seqlen_q, "max_seqlen_q")),
        ("max_seqlen_k", longest_of(cu_seqlens_k, max_seqlen_k, "max_seqlen_k")),
        ("dk_dtype", _keys_dtype(d_index_k)),
    )
    scalars = (require_finite(sm_scale, "sm_scale"), require_finite(loss_coeff, "loss_coeff"))
    results = call(DENSE, operands, options, scalars, backend=backend, stream=stream)
    return _delivered(results, (d_index_q, d_weights, d_index_k, d_score), stream)
