"""Probabilities at listed keys: what the indexer predicts, and what attention had."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.sparse_scores.op import ATTENTION, INDEXER
from cudnn_fe.attention.operands import deliver, require_finite
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_sparse_attn_score_forward", "dsa_sparse_indexer_score_forward"]


def dsa_sparse_indexer_score_forward(
    q_indexer: Any,
    k_indexer: Any,
    weights: Any,
    topk_indices: Any,
    qhead_per_kv_head: int | None = None,
    topk_length: Any = None,
    topk_indices_global: bool = False,
    out: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The lightning indexer's probabilities over each query's listed keys.

    Args:
        q_indexer: Queries (B, Sq, H, D): float16, bfloat16, float32 or float64.
        k_indexer: Keys (B, Sk, D) of the same dtype.
        weights: Weights of the heads (B, Sq, H) of the same dtype.
        topk_indices: int32 or int64 (B, Sq, K): the keys of each query; negative ids are no slots.
        qhead_per_kv_head: H, or None.
        topk_length: (B, Sq): slots that count; None is K.
        topk_indices_global: Whether ids count the keys of all batches.
        out: Buffer for the result, which is then returned; None allocates. JAX takes none.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``predict`` (B, Sq, K), float32: 0 at slots that do not count.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    operands = (q_indexer, k_indexer, weights, topk_indices, topk_length)
    options = (("qhead_per_kv_head", qhead_per_kv_head), ("topk_indices_global", topk_indices_global))
    results = call(INDEXER, operands, options, backend=backend, stream=stream)
    return TupleDict(predict=deliver(results, (out,), ("predict",), stream=stream)[0])


def dsa_sparse_attn_score_forward(
    q_attn: Any,
    k_attn: Any,
    lse: Any,
    topk_indices: Any,
    softmax_scale: float,
    qhead_per_kv_head: int | None = None,
    topk_length: Any = None,
    topk_indices_global: bool = False,
    out: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Attention's probabilities over each query's listed keys, summed over heads and normalised.

    Args:
        q_attn: Queries (B, Sq, H, D): float16, bfloat16, float32 or float64.
        k_attn: Keys (B, Sk, D) of the same dtype.
        lse: float32 (B, Sq, H): natural log-sum-exp of attention, without a sink.
        topk_indices: int32 or int64 (B, Sq, K): the keys of each query; negative ids are no slots.
        softmax_scale: Factor of the scores.
        qhead_per_kv_head: H, or None.
        topk_length: (B, Sq): slots that count; None is K.
        topk_indices_global: Whether ids count the keys of all batches.
        out: Buffer for the result, which is then returned; None allocates. JAX takes none.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``target`` (B, Sq, K), float32: 0 at slots that do not count, and everywhere if the sum is at most 1e-10.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    operands = (q_attn, k_attn, lse, topk_indices, topk_length)
    options = (("qhead_per_kv_head", qhead_per_kv_head), ("topk_indices_global", topk_indices_global))
    scalars = (require_finite(softmax_scale, "softmax_scale"),)
    results = call(ATTENTION, operands, options, scalars, backend=backend, stream=stream)
    return TupleDict(target=deliver(results, (out,), ("target",), stream=stream)[0])
