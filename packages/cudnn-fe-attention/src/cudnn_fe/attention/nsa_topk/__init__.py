"""NSA's top-k reduction: the best blocks of keys of every query."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.nsa_topk.op import FORWARD
from cudnn_fe.attention.operands import default_scale
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["nsa_topk_reduction_forward"]


def nsa_topk_reduction_forward(
    q_tensor: Any,
    k_tensor: Any,
    lse_tensor: Any,
    cum_seqlen_q_tensor: Any = None,
    cum_seqlen_k_tensor: Any = None,
    max_s_q: int | None = None,
    max_s_k: int | None = None,
    acc_dtype: Any = "float32",
    k_value: int = 16,
    selection_block_size: int = 64,
    compress_stride: int = 32,
    is_causal: bool = True,
    mma_tiler_mn: tuple[int, int] = (128, 128),
    scale_softmax: float | None = None,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Scores blocks of keys by their compressed-attention probabilities and returns the best of each query.

    Args:
        q_tensor: Queries (B, Hq, S, D), or packed (T, Hq, D): float16, bfloat16, float32 or float64.
        k_tensor: Compressed keys (B, Hkv, Sk, D) or (Tk, Hkv, D) of the same dtype.
        lse_tensor: float32 (B, Hq, S), (T, Hq) or (T, Hq, 1): ``-log2(e)`` times compression attention's log-sum-exp.
        cum_seqlen_q_tensor: int32 or int64 (B+1,): first row of each packed sequence; None for padded operands.
        cum_seqlen_k_tensor: Likewise for keys.
        max_s_q: Hint without effect on results.
        max_s_k: Hint without effect on results.
        acc_dtype: The dtype of ``lse_tensor``.
        k_value: Blocks to return.
        selection_block_size: Tokens of a block, a multiple of ``compress_stride``.
        compress_stride: Tokens that a compressed key stands for.
        is_causal: Whether a key is hidden until its last token.
        mma_tiler_mn: Hint without effect on results.
        scale_softmax: Factor of the scores; None is ``D ** -0.5``.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``topk_scores_tensor`` and int32 ``topk_indices_tensor``, (B, Hkv, S, k) or (T, Hkv, k), best first; minus
        infinity and -1 in slots that nothing fills.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    del max_s_q, max_s_k, mma_tiler_mn
    options = (
        ("k_value", k_value),
        ("selection_block_size", selection_block_size),
        ("compress_stride", compress_stride),
        ("is_causal", is_causal),
        ("acc_dtype", acc_dtype),
    )
    scale = default_scale(q_tensor) if scale_softmax is None else scale_softmax
    operands = (q_tensor, k_tensor, lse_tensor, cum_seqlen_q_tensor, cum_seqlen_k_tensor)
    scores, indices = call(FORWARD, operands, options, (scale,), backend=backend, stream=current_stream)
    return TupleDict(topk_scores_tensor=scores, topk_indices_tensor=indices)
