"""NSA's sliding-window attention: a window of keys around each query."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.nsa_sliding_window.op import FORWARD
from cudnn_fe.attention.operands import default_scale, require_flag
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["nsa_sliding_window_attention_forward"]


def nsa_sliding_window_attention_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    seq_len_q_tensor: Any = None,
    seq_len_kv_tensor: Any = None,
    q_ragged_offset_tensor: Any = None,
    k_ragged_offset_tensor: Any = None,
    v_ragged_offset_tensor: Any = None,
    o_ragged_offset_tensor: Any = None,
    stats_ragged_offset_tensor: Any = None,
    left_bound: int = 0,
    right_bound: int = 0,
    is_infer: bool = False,
    attn_scale: float | None = None,
    o_dtype: Any = None,
    intermediate_data_type: Any = "float32",
    compute_data_type: Any = "float32",
    cudnn_handle: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Softmax attention over a window of keys around each query.

    Args:
        q_tensor: Queries (B, Hq, Sq, D), or packed (T, Hq, D): float16, bfloat16, float32 or float64.
        k_tensor: Keys (B, Hkv, Skv, D) or (T, Hkv, D) of the same dtype.
        v_tensor: Values, likewise with Dv channels.
        seq_len_q_tensor: int32 (B,) or (B, 1, 1, 1): queries of each packed sequence; None for padded operands.
        seq_len_kv_tensor: Likewise for keys.
        q_ragged_offset_tensor: int64 (B+1,): first element of each sequence in Q; all five or none, which means
            sequences one after the other.
        k_ragged_offset_tensor: Likewise for K.
        v_ragged_offset_tensor: Likewise for V.
        o_ragged_offset_tensor: Likewise for O.
        stats_ragged_offset_tensor: Likewise for the statistics.
        left_bound: Keys up to and with the diagonal.
        right_bound: Keys past the diagonal.
        is_infer: Whether to leave the statistics out.
        attn_scale: Factor of the scores; None is ``D ** -0.5``.
        o_dtype: Output dtype; None is that of Q.
        intermediate_data_type: float32.
        compute_data_type: float32.
        cudnn_handle: Without effect.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o_tensor`` like Q, and ``stats_tensor`` (B, Hq, Sq, 1) or (T, Hq, 1), the log-sum-exp, None if ``is_infer``.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    del cudnn_handle
    require_flag(is_infer, "is_infer")
    options = (
        ("left_bound", left_bound),
        ("right_bound", right_bound),
        ("o_dtype", o_dtype),
        ("intermediate_data_type", intermediate_data_type),
        ("compute_data_type", compute_data_type),
    )
    scale = default_scale(q_tensor) if attn_scale is None else attn_scale
    operands = (
        q_tensor,
        k_tensor,
        v_tensor,
        seq_len_q_tensor,
        seq_len_kv_tensor,
        q_ragged_offset_tensor,
        k_ragged_offset_tensor,
        v_ragged_offset_tensor,
        o_ragged_offset_tensor,
        stats_ragged_offset_tensor,
    )
    o, statistics = call(FORWARD, operands, options, (scale,), backend=backend, stream=stream)
    return TupleDict(o_tensor=o, stats_tensor=None if is_infer else statistics)
