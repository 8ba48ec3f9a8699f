"""Gradients of attention trained with NVFP4 queries, keys, values and probabilities."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.nvfp4_qat.op import BACKWARD
from cudnn_fe.attention.operands import deliver, softmax_factor
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["check_hints", "nvfp4_attention_qat_backward"]

_GRADIENTS = ("dq_tensor", "dk_tensor", "dv_tensor")
_HINTS = ("auto", "triton", "frost")


def check_hints(q: Any, backend: Any, head_chunk: Any, workspace_limit_bytes: Any) -> str | None:
    """Validates the vendor's hints; returns the backend of ours that is asked for, None where it is one of theirs."""
    whole = isinstance(head_chunk, int) and not isinstance(head_chunk, bool)
    if not whole or head_chunk < 0 or (head_chunk and (q.shape[1] % head_chunk or backend == "triton")):
        wanted = "0" if backend == "triton" else f"0, or a divisor of {q.shape[1]} heads"
        raise OptionError("head_chunk", got=repr(head_chunk), wanted=wanted, remedy="leave it at 0: a hint")
    limit = workspace_limit_bytes
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise OptionError(
            "workspace_limit_bytes", got=repr(limit), wanted="an int of at least 0, or None", remedy="a hint"
        )
    return None if backend in _HINTS else backend


def nvfp4_attention_qat_backward(
    do_tensor: Any,
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    high_precision_o_tensor: Any,
    lse_tensor: Any,
    *,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    dq_tensor: Any = None,
    dk_tensor: Any = None,
    dv_tensor: Any = None,
    current_stream: Any = None,
    backend: str | None = "auto",
    head_chunk: int = 0,
    workspace_limit_bytes: int | None = None,
) -> TupleDict:
    """Straight-through gradients of attention whose Q, K, V and probabilities are rounded to NVFP4.

    Args:
        do_tensor: Gradient of the output (B, H, Sq, D): bfloat16, float16 or float32, channels contiguous.
        q_tensor: Queries (B, H, Sq, D) of the same dtype, not quantised.
        k_tensor: Keys (B, H, Skv, D).
        v_tensor: Values (B, H, Skv, D).
        high_precision_o_tensor: (B, H, Sq, D): attention of the quantised Q, K and V with unquantised probabilities.
        lse_tensor: float32 (B, H, Sq): its natural log-sum-exp.
        softmax_scale: Factor of the scores, above 0; None is ``D ** -0.5``.
        is_causal: Whether queries see keys up to their own place only; needs Sq = Skv.
        dq_tensor: Buffer for the gradient of Q, which is then returned; None allocates. JAX takes none.
        dk_tensor: Likewise for K.
        dv_tensor: Likewise for V.
        current_stream: Launch stream for CUDA tensors; None is torch's current one.
        backend: ``None``, or the name of the one to use; ``"auto"``, ``"triton"`` and ``"frost"`` are None here.
        head_chunk: Hint: heads at a time.
        workspace_limit_bytes: Hint: there is no workspace.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor``, of the shapes and dtype of Q, K and V.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    chosen = check_hints(q_tensor, backend, head_chunk, workspace_limit_bytes)
    operands = (do_tensor, q_tensor, k_tensor, v_tensor, high_precision_o_tensor, lse_tensor)
    scalars = (softmax_factor(q_tensor, softmax_scale, sign="positive"),)
    grads = call(BACKWARD, operands, (("is_causal", is_causal),), scalars, backend=chosen, stream=current_stream)
    placed = deliver(grads, (dq_tensor, dk_tensor, dv_tensor), _GRADIENTS, stream=current_stream)
    return TupleDict(zip(_GRADIENTS, placed, strict=True))
