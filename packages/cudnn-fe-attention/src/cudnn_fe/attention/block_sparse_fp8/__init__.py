"""Block-sparse attention in FP8."""

from __future__ import annotations

import math
from typing import Any

from cudnn_fe.attention.block_sparse_fp8.op import FORWARD
from cudnn_fe.attention.operands import default_scale
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["block_sparse_attention_fp8_forward"]


def block_sparse_attention_fp8_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    q2k_block_index: Any,
    block_sparse_num: int | None = None,
    block_sizes: Any = None,
    q2k_block_nums: Any = None,
    *,
    softmax_scale: float | None = None,
    sparse_block_size: int = 64,
    kv_splits: int = 1,
    backend: str | None = None,
    stream: Any = None,
) -> TupleDict:
    """Block-sparse attention with Q, K, V and the probabilities quantised to E4M3 on the way.

    Args:
        q_tensor: Queries (B, Hq, Sq, D), bfloat16, channels contiguous.
        k_tensor: Keys (B, Hkv, Sk, D), bfloat16.
        v_tensor: Values (B, Hkv, Sk, Dv), bfloat16.
        q2k_block_index: int32 (B, Hq, ceil(Sq / block), C): key blocks of every query block.
        block_sparse_num: Entries of every list; None is C.
        block_sizes: int32 (Nkv,), (B, Nkv) or (B, Hq, Nkv): valid tokens of every key block; None is all.
        q2k_block_nums: int32 (B, Hq, ceil(Sq / block)): entries of each list.
        softmax_scale: Factor of the scores, above 0; None is ``D ** -0.5``.
        sparse_block_size: Tokens of a block, 64 or 128.
        kv_splits: Hint without effect on results.
        backend: ``None``, or the name of the one to use.
        stream: Launch stream for CUDA tensors.

    Returns:
        ``o_tensor`` (B, Hq, Sq, Dv), bfloat16.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    scale = default_scale(q_tensor) if softmax_scale is None else softmax_scale
    if isinstance(scale, int | float) and not 0 < scale < math.inf:
        raise OptionError("softmax_scale", got=repr(scale), wanted="a finite number above 0", remedy="pass e.g. 0.125")
    options = (
        ("sparse_block_size", sparse_block_size),
        ("block_sparse_num", block_sparse_num),
        ("kv_splits", kv_splits),
    )
    operands = (q_tensor, k_tensor, v_tensor, q2k_block_index, q2k_block_nums, block_sizes)
    return TupleDict(o_tensor=call(FORWARD, operands, options, (scale,), backend=backend, stream=stream)[0])
