"""Sparse attention of DeepSeek: every query over its own list of rows, which are keys and values at once."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.sparse_attention.op import BACKWARD, FORWARD
from cudnn_fe.attention.operands import deliver, require_flag, require_positive, softmax_factor
from cudnn_fe.core.call import call
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_sparse_attention_backward", "dsa_sparse_attention_forward"]

_GRADIENTS = ("dq", "dkv", "d_sink")


def dsa_sparse_attention_forward(
    q: Any,
    kv: Any,
    topk_idxs: Any,
    *,
    attn_sink: Any = None,
    topk_length: Any = None,
    softmax_scale: float | None = None,
    indexer_topk: int = 0,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Softmax attention of every query over its own list of rows, with a sink in the denominator.

    Differentiable in q, kv and the sink, through ``out`` alone, under torch autograd and JAX.

    Args:
        q: Queries (T, H, D): float16, bfloat16, float32 or float64.
        kv: Rows (Tkv, D) of the same dtype: keys, and in their first 512 channels values.
        topk_idxs: int32 (T, K): the rows that each query sees; negative ids and those past Tkv are no slots.
        attn_sink: float32 (H,): a score that takes weight and gives no value; None is none.
        topk_length: int32 (T,): slots of each list that count; None is K.
        softmax_scale: Factor of the scores; None is ``D ** -0.5``.
        indexer_topk: The first slots that ``lse_indexer`` is taken over; 0 leaves it out.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` (T, H, min(D, 512)), ``max_logits``, ``lse`` and ``lse_indexer`` (T, H); the last is None without
        ``indexer_topk``. An empty list gives 0, minus infinity, and plus infinity for both log-sum-exps.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    operands = (q, kv, topk_idxs, attn_sink, topk_length)
    options = (("indexer_topk", indexer_topk),)
    out, top, lse, *more = call(
        FORWARD, operands, options, (softmax_factor(q, softmax_scale),), backend=backend, stream=stream
    )
    return TupleDict(out=out, max_logits=top, lse=lse, lse_indexer=more[0] if more else None)


def dsa_sparse_attention_backward(
    q: Any,
    kv: Any,
    out: Any,
    dout: Any,
    lse: Any,
    attn_sink: Any,
    topk_idxs: Any,
    softmax_scale: float | None = None,
    topk_length: Any = None,
    dq: Any = None,
    dkv: Any = None,
    block_tile: int = 64,
    deterministic: bool = False,
    stream: Any = None,
    workspace: Any = None,
    q_cluster_mode: str = "off",
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `dsa_sparse_attention_forward`.

    Args:
        q: As in the forward, and so are all arguments that both have.
        kv: Rows.
        out: The forward's output.
        dout: Its gradient.
        lse: The forward's log-sum-exp, without the sink.
        attn_sink: float32 (H,); minus infinity where there was none.
        topk_idxs: The rows that each query sees.
        softmax_scale: Factor of the scores.
        topk_length: Slots of each list that count.
        dq: Buffer for the gradient of the queries, which is then returned; None allocates. JAX takes none.
        dkv: Likewise for the rows.
        block_tile: Hint without effect on results.
        deterministic: Whether results must be bit-equal from run to run; they are in either case.
        stream: Launch stream for CUDA tensors.
        workspace: Not needed; a hint.
        q_cluster_mode: ``"off"`` or ``"adaptive_pair"``: a hint without effect on results.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq``, ``dkv`` and ``d_sink``.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    del workspace
    check_hints(block_tile, deterministic, q_cluster_mode)
    operands = (q, kv, out, dout, lse, attn_sink, topk_idxs, topk_length)
    grads = call(BACKWARD, operands, (), (softmax_factor(q, softmax_scale),), backend=backend, stream=stream)
    return TupleDict(zip(_GRADIENTS, deliver(grads, (dq, dkv, None), _GRADIENTS, stream=stream), strict=True))


def check_hints(block_tile: Any, deterministic: Any, q_cluster_mode: Any) -> None:
    """Raises OptionError unless the backward's hints are in their documented sets."""
    require_positive(block_tile, "block_tile")
    require_flag(deterministic, "deterministic")
    require_one_of(q_cluster_mode, "q_cluster_mode", ("off", "adaptive_pair"))
