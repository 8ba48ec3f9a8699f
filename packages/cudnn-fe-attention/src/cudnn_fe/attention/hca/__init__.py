"""Gradients of hybrid compressed attention in a fixed layout for context parallelism."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.hca.op import BACKWARD
from cudnn_fe.attention.operands import deliver
from cudnn_fe.core.call import call
from cudnn_fe.core.require import require_finite_positive
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["aligned_hca_backward"]

_GRADIENTS = ("dq", "dkv", "d_sink")


def aligned_hca_backward(
    q: Any,
    kv: Any,
    out: Any,
    dout: Any,
    lse: Any,
    attn_sink: Any,
    *,
    cp_rank: int,
    softmax_scale: float = 512**-0.5,
    dq: Any = None,
    dkv: Any = None,
    d_sink: Any = None,
    workspace: Any = None,
    current_stream: Any = None,
    cp_size: int = 16,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of attention over a window of 128 tokens and every 128 tokens' compressed key before it.

    Args:
        q: Queries of this rank's chunk (L, H, D), L a multiple of 128: float16, bfloat16, float32 or float64.
        kv: Rows (L + 128 + cp_size * (L / 128 + 1), D), keys and values at once: 128 tokens before the chunk, the
            chunk's, and the compressed keys of all ranks in the documented order.
        out: The forward's output (L, H, D).
        dout: Its gradient.
        lse: float32 (L, H): the forward's natural log-sum-exp, without the sink.
        attn_sink: float32 (H,): a score that takes weight and gives no value.
        cp_rank: Which chunk this is.
        softmax_scale: Factor of the scores, above 0.
        dq: Buffer for the gradient of the queries, which is then returned; None allocates. JAX takes none.
        dkv: Likewise for the rows.
        d_sink: Likewise for the sinks.
        workspace: Not needed; a hint.
        current_stream: Launch stream for CUDA tensors.
        cp_size: Chunks of the sequence: 4, 8 or 16.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq``, ``dkv`` and ``d_sink``; rows that no query sees get 0.

    Raises:
        NotYetSupportedError: Shapes other than the layout's.
        StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    del workspace
    scale = require_finite_positive(softmax_scale, "softmax_scale")
    options = (("cp_rank", cp_rank), ("cp_size", cp_size))
    operands = (q, kv, out, dout, lse, attn_sink)
    grads = call(BACKWARD, operands, options, (scale,), backend=backend, stream=current_stream)
    placed = deliver(grads, (dq, dkv, d_sink), _GRADIENTS, stream=current_stream)
    return TupleDict(zip(_GRADIENTS, placed, strict=True))
