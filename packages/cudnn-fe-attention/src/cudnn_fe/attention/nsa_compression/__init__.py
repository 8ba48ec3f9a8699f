"""NSA's compression attention: all queries over keys that each stand for a group of tokens."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.nsa_compression.op import FORWARD
from cudnn_fe.attention.operands import default_scale, require_flag
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["nsa_compression_attention_forward"]


def nsa_compression_attention_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    cum_seqlen_q_tensor: Any = None,
    cum_seqlen_k_tensor: Any = None,
    enable_lse: bool = False,
    o_dtype: Any = None,
    qk_acc_dtype: Any = "float32",
    pv_acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    is_persistent: bool = False,
    scale_q: float = 1.0,
    scale_k: float = 1.0,
    scale_v: float = 1.0,
    inv_scale_o: float = 1.0,
    scale_softmax: float | None = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Attention of all queries over keys and values that each stand for a group of tokens, causally.

    Args:
        q_tensor: Queries (B, Hq, Sq, D), or packed (T, Hq, D); float16, bfloat16, float32, float64 or E4M3.
        k_tensor: Compressed keys (B, Hkv, Skv, D) or (Tkv, Hkv, D) of the same dtype.
        v_tensor: Compressed values, likewise.
        cum_seqlen_q_tensor: int32 or int64 (B+1,): first row of each packed sequence of queries.
        cum_seqlen_k_tensor: Likewise for keys.
        enable_lse: Whether to return the log-sum-exp.
        o_dtype: Output dtype; None is that of Q.
        qk_acc_dtype: float32.
        pv_acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        is_persistent: Hint without effect on results.
        scale_q: Factor of Q.
        scale_k: Factor of K.
        scale_v: Factor of V.
        inv_scale_o: Factor of the output.
        scale_softmax: Factor of the scores; None is ``D ** -0.5``.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o_tensor`` like Q, and ``lse_tensor``, (B, Hq, Sq) or (T, Hq, 1), None unless ``enable_lse``.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    del mma_tiler_mn, is_persistent
    require_flag(enable_lse, "enable_lse")
    options = (
        ("o_dtype", o_dtype),
        ("qk_acc_dtype", qk_acc_dtype),
        ("pv_acc_dtype", pv_acc_dtype),
        ("flat", False),
    )
    softmax = default_scale(q_tensor) if scale_softmax is None else scale_softmax
    operands = (q_tensor, k_tensor, v_tensor, cum_seqlen_q_tensor, cum_seqlen_k_tensor)
    scalars = (scale_q, scale_k, scale_v, inv_scale_o, softmax)
    o, lse = call(FORWARD, operands, options, scalars, backend=backend, stream=stream)
    return TupleDict(o_tensor=o, lse_tensor=lse if enable_lse else None)
