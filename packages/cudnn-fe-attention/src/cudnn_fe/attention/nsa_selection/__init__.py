"""NSA's selection attention: every query token over its own list of key blocks."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.nsa_selection.op import FORWARD
from cudnn_fe.attention.operands import default_scale
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["nsa_selection_attention_forward"]


def nsa_selection_attention_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    block_indices_tensor: Any,
    block_counts_tensor: Any,
    cum_seqlen_q_tensor: Any = None,
    cum_seqlen_k_tensor: Any = None,
    block_size: int = 64,
    scale_softmax: float | None = None,
    o_dtype: Any = None,
    acc_dtype: Any = "float32",
    max_s_q: int | None = None,
    max_s_k: int | None = None,
    stream: Any = None,
    *,
    is_causal: bool = False,
    backend: str | None = None,
) -> TupleDict:
    """Attention of every query token over its own list of key blocks.

    Args:
        q_tensor: Packed queries (T, Hq, D): float16, bfloat16, float32 or float64.
        k_tensor: Packed keys (T, Hkv, D) of the same dtype.
        v_tensor: Packed values (T, Hkv, Dv).
        block_indices_tensor: int32 (T, Hkv, K): blocks of each query, counted from its sequence's start.
        block_counts_tensor: int32 (T, Hkv): entries of each list that are read.
        cum_seqlen_q_tensor: int32 or int64 (B+1,): first row of each sequence.
        cum_seqlen_k_tensor: Likewise for keys; equal to the former, which None means.
        block_size: Tokens of a block: 16, 32, 64 or 128.
        scale_softmax: Factor of the scores; None is ``D ** -0.5``.
        o_dtype: None or the dtype of Q.
        acc_dtype: float32.
        max_s_q: Hint without effect on results.
        max_s_k: Likewise; equal to ``max_s_q``.
        stream: Launch stream for CUDA tensors.
        is_causal: Whether a query sees no later token.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o_tensor`` (T, Hq, Dv), ``l_tensor`` and ``m_tensor`` (T, Hq, 1): the sum of exponentials relative to the
        largest scaled score, and that score.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    if cum_seqlen_k_tensor is None:
        cum_seqlen_k_tensor = cum_seqlen_q_tensor
    options = (
        ("block_size", block_size),
        ("o_dtype", o_dtype),
        ("acc_dtype", acc_dtype),
        ("max_s_q", max_s_q),
        ("max_s_k", max_s_k),
        ("is_causal", is_causal),
        ("flat", False),
    )
    scale = default_scale(q_tensor) if scale_softmax is None else scale_softmax
    operands = (
        q_tensor,
        k_tensor,
        v_tensor,
        block_indices_tensor,
        block_counts_tensor,
        cum_seqlen_q_tensor,
        cum_seqlen_k_tensor,
    )
    o, total, top = call(FORWARD, operands, options, (scale,), backend=backend, stream=stream)
    return TupleDict(o_tensor=o, l_tensor=total, m_tensor=top)
