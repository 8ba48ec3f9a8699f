"""The CSA compressor: every few tokens of a segment to one row, by a softmax per channel."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.csa_compressor.op import BACKWARD, FORWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["csa_compressor_backward", "csa_compressor_forward"]


def _last(offsets: Any) -> int:
    """The last offset, read on the host."""
    try:
        return int(offsets[-1])
    except TypeError:
        raise OptionError(
            "total_comp", got="None while tracing", wanted="the number of output rows", remedy="pass it as an int"
        ) from None


def csa_compressor_forward(
    kv: Any,
    score: Any,
    ape: Any,
    cu_seqlens: Any,
    cu_seqlens_comp: Any,
    ratio: int = 4,
    head_dim: int | None = None,
    coff: int = 2,
    total_comp: int | None = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Compresses every ``ratio`` tokens of a segment to one row by a softmax per channel.

    Differentiable in kv, score and ape under torch autograd and JAX.

    Args:
        kv: Packed tokens (T, coff d): float16, bfloat16, float32 or float64.
        score: Their scores, of the same shape and dtype.
        ape: float32 (ratio, coff d): bias of the scores by place in the block.
        cu_seqlens: int32 (B+1,): first token of each segment.
        cu_seqlens_comp: int32 (B+1,): first output row of each segment, which has ``seqlen // ratio`` of them.
        ratio: Tokens of a block: 2, 4 or 128.
        head_dim: d; None takes it from the width.
        coff: 2 lets a row see the block before its own too, through the first half of the columns; else 1.
        total_comp: Output rows, at least ``cu_seqlens_comp[B]``; None reads that, which waits for the device.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` (total_comp, d), of the dtype of kv.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    total = _last(cu_seqlens_comp) if total_comp is None else total_comp
    options = (("ratio", ratio), ("coff", coff), ("head_dim", head_dim), ("total_comp", total))
    operands = (kv, score, ape, cu_seqlens, cu_seqlens_comp)
    return TupleDict(out=call(FORWARD, operands, options, backend=backend, stream=stream)[0])


def csa_compressor_backward(
    kv: Any,
    score: Any,
    ape: Any,
    cu_seqlens: Any,
    cu_seqlens_comp: Any,
    grad_out: Any,
    ratio: int = 4,
    head_dim: int | None = None,
    coff: int = 2,
    stream: Any = None,
    deterministic: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `csa_compressor_forward`.

    Args:
        kv: As in the forward, and so are all arguments that both have.
        score: Scores of the tokens.
        ape: Bias of the scores.
        cu_seqlens: First token of each segment.
        cu_seqlens_comp: First output row of each segment.
        grad_out: Gradient of the rows (total_comp, d), of the dtype of kv.
        ratio: Tokens of a block.
        head_dim: d.
        coff: 1 or 2.
        stream: Launch stream for CUDA tensors.
        deterministic: Whether results must be bit-equal from run to run; they are in either case.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``grad_kv``, ``grad_score`` and float32 ``grad_ape``.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    del deterministic
    options = (("ratio", ratio), ("coff", coff), ("head_dim", head_dim))
    operands = (kv, score, ape, cu_seqlens, cu_seqlens_comp, grad_out)
    grads = call(BACKWARD, operands, options, backend=backend, stream=stream)
    return TupleDict(grad_kv=grads[0], grad_score=grads[1], grad_ape=grads[2])
