"""Gradients of softmax attention from its output and log-sum-exp."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.operands import softmax_factor
from cudnn_fe.attention.sdpa.op import BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["result_names", "sdpa_backward"]


def result_names(bias: Any, sink: Any) -> tuple[str, ...]:
    """The keys of the results."""
    more = (("dbias_tensor",) if bias is not None else ()) + (("dsink_tensor",) if sink is not None else ())
    return ("dq_tensor", "dk_tensor", "dv_tensor", *more)


def sdpa_backward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    o_tensor: Any,
    do_tensor: Any,
    stats_tensor: Any,
    is_causal: bool = False,
    causal_bottom_right: bool = False,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    deterministic: bool = False,
    scale_softmax: float | None = None,
    seq_q_lens: Any = None,
    seq_kv_lens: Any = None,
    sink_token: Any = None,
    bias_tensor: Any = None,
    cum_seqlen_q_tensor: Any = None,
    cum_seqlen_k_tensor: Any = None,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of softmax attention, with bias, sinks, windows and lengths, from its output and log-sum-exp.

    Args:
        q_tensor: Queries (B, Hq, Sq, D): float16, bfloat16, float32 or float64, channels contiguous.
        k_tensor: Keys (B, Hkv, Skv, D) of the same dtype; query head h reads key head ``h // (Hq / Hkv)``.
        v_tensor: Values (B, Hkv, Skv, Dv).
        o_tensor: The forward's output (B, Hq, Sq, Dv).
        do_tensor: Its gradient.
        stats_tensor: float32 (B, Hq, Sq, 1): the forward's natural log-sum-exp, with the sink in it where there is one.
        is_causal: Whether queries see keys up to the diagonal only.
        causal_bottom_right: Whether the diagonal ends in the last query and key, instead of starting in the first.
        window_size_left: Keys before the diagonal that are seen; None is all.
        window_size_right: Keys after the diagonal that are seen, with ``is_causal``; None is 0.
        deterministic: Whether results must be bit-equal from run to run.
        scale_softmax: Factor of the scores; None is ``D ** -0.5``.
        seq_q_lens: int32 (B,): queries of each sequence; the rest is not read. Needs ``seq_kv_lens``.
        seq_kv_lens: int32 (B,): keys of each sequence.
        sink_token: float32 (1, Hq, 1, 1): a logit that joins the sum of every row; gives ``dsink_tensor``.
        bias_tensor: (1 or B, Hq, Sq, Skv): added to the scaled scores; gives ``dbias_tensor``.
        cum_seqlen_q_tensor: int32 or int64 (N+1,): first query of each sequence, of operands (1, H, T, D) that pack N.
        cum_seqlen_k_tensor: Likewise for keys.
        stream: Launch stream for CUDA tensors; None is torch's current one.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor``, of the shapes and dtype of Q, K and V; then float32
        ``dbias_tensor`` and ``dsink_tensor`` where there are such operands.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    options = (
        ("is_causal", is_causal),
        ("causal_bottom_right", causal_bottom_right),
        ("window_size_left", window_size_left),
        ("window_size_right", window_size_right),
        ("deterministic", deterministic),
        ("dbias_dtype", None),
    )
    operands = (
        q_tensor,
        k_tensor,
        v_tensor,
        o_tensor,
        do_tensor,
        stats_tensor,
        seq_q_lens,
        seq_kv_lens,
        sink_token,
        bias_tensor,
        cum_seqlen_q_tensor,
        cum_seqlen_k_tensor,
    )
    grads = call(
        BACKWARD,
        operands,
        options,
        (softmax_factor(q_tensor, scale_softmax, "scale_softmax"),),
        backend=backend,
        stream=stream,
    )
    return TupleDict(zip(result_names(bias_tensor, sink_token), grads, strict=True))
