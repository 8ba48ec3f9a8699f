"""Flex attention: softmax attention under a mask of key intervals, checked once and used by any number of calls."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import without_gradient
from cudnn_fe.attention.flex.op import BACKWARD, FORWARD
from cudnn_fe.attention.flex.plan import MaskPlan, MaskPlanMetadata, create_mask_plan, match_plan
from cudnn_fe.attention.operands import deliver, require_flag, softmax_factor
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "MaskPlan",
    "MaskPlanMetadata",
    "create_mask_plan",
    "flex_attention",
    "flex_attention_backward",
    "flex_attention_forward",
    "flex_attn_func",
]

_GRADIENTS = ("dq_tensor", "dk_tensor", "dv_tensor")


def flex_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask_plan: MaskPlan,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_max_logit: bool = False,
    backend: str | None = None,
) -> Any:
    """Softmax attention in which every query sees the keys of the plan's intervals.

    Differentiable in Q, K and V under torch autograd and JAX, also through the log-sum-exp.

    Args:
        q: Queries (B, Sq, Hq, D), or packed (Tq, Hq, D): float16, bfloat16, float32 or float64, channels contiguous.
        k: Keys (B, Sk, Hkv, D) or (Tk, Hkv, D); query head h reads key head ``h // (Hq / Hkv)``.
        v: Values (B, Sk, Hkv, Dv) or (Tk, Hkv, Dv).
        mask_plan: From `create_mask_plan`, for operands of these shapes, dtype and place.
        softmax_scale: Factor of the scores; None is ``D ** -0.5``.
        deterministic: Whether gradients must be bit-equal from run to run.
        return_lse: Whether to return the natural log-sum-exp too.
        return_max_logit: Whether to return each head's largest visible scaled score too; it has no derivative.
        backend: ``None``, or the name of the one to use.

    Returns:
        The output, (B, Sq, Hq, Dv) or (Tq, Hq, Dv); with what was asked for, a tuple ``(out[, lse][, max_logit])``:
        (B, Hq, Sq) or (Hq, Tq), and (Hq,), both float32.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError: As the message says.

    Example:
        >>> import numpy as np
        >>> x = np.ones((1, 4, 1, 8), np.float32)
        >>> causal = np.arange(1, 5, dtype=np.int32).reshape(1, 1, 4)
        >>> out, top = flex_attention(x, x, x, mask_plan=create_mask_plan(causal, x, x, x), return_max_logit=True)
        >>> float(out[0, 2, 0, 0]), round(float(top[0]), 3)
        (1.0, 2.828)
    """
    metadata = match_plan(mask_plan, q, k, v)
    for name, flag in (("return_lse", return_lse), ("return_max_logit", return_max_logit)):
        require_flag(flag, name)
    scale = softmax_factor(q, softmax_scale, sign="not negative" if return_max_logit else "any")
    if not metadata.has_backward and _needs_gradient(q, k, v):
        raise OptionError(
            "mask_plan",
            got="a plan without a backward, and an operand that requires a gradient",
            wanted="a plan with one",
            remedy="make it with build_backward=True, or call under no_grad",
        )
    options = (("deterministic", deterministic), ("has_backward", metadata.has_backward))
    out, lse, top = call(FORWARD, (q, k, v, *mask_plan.tensors), options, (scale,), backend=backend)
    more = ((lse,) if return_lse else ()) + ((without_gradient(top),) if return_max_logit else ())
    return (out, *more) if more else out


flex_attn_func = flex_attention


def _needs_gradient(*arrays: Any) -> bool:
    if not any(getattr(x, "requires_grad", False) for x in arrays):
        return False
    import torch  # they are its tensors

    return torch.is_grad_enabled()


def flex_attention_forward(
    q: Any,
    k: Any,
    v: Any,
    mask_plan: MaskPlan,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """`flex_attention` with all its results.

    Args:
        q: As in `flex_attention`, and so are all arguments that both have.
        k: Keys.
        v: Values.
        mask_plan: The mask.
        softmax_scale: Factor of the scores.
        deterministic: Whether gradients must be bit-equal from run to run.
        stream: Launch stream for CUDA tensors; None is torch's current one.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o_tensor``, ``lse_tensor`` and ``max_logit_tensor``.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError: As the message says.
    """
    metadata = match_plan(mask_plan, q, k, v)
    options = (("deterministic", deterministic), ("has_backward", metadata.has_backward))
    scalars = (softmax_factor(q, softmax_scale),)
    out, lse, top = call(FORWARD, (q, k, v, *mask_plan.tensors), options, scalars, backend=backend, stream=stream)
    return TupleDict(o_tensor=out, lse_tensor=lse, max_logit_tensor=without_gradient(top))


def flex_attention_backward(
    do_tensor: Any,
    q: Any,
    k: Any,
    v: Any,
    o_tensor: Any,
    lse_tensor: Any,
    mask_plan: MaskPlan,
    dlse_tensor: Any = None,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    dq_tensor: Any = None,
    dk_tensor: Any = None,
    dv_tensor: Any = None,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `flex_attention`.

    Args:
        do_tensor: Gradient of the output, of its shape and dtype.
        q: As in the forward, and so are all arguments that both have.
        k: Keys.
        v: Values.
        o_tensor: The forward's output.
        lse_tensor: The forward's log-sum-exp.
        mask_plan: The mask; made with a backward.
        dlse_tensor: Gradient of the log-sum-exp, or None for zero.
        softmax_scale: Factor of the scores.
        deterministic: Whether results must be bit-equal from run to run.
        dq_tensor: Buffer for the gradient of Q, which is then returned; None allocates. JAX takes none.
        dk_tensor: Likewise for K.
        dv_tensor: Likewise for V.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor``.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError: As the message says.
    """
    metadata = match_plan(mask_plan, q, k, v)
    options = (("deterministic", deterministic), ("has_backward", metadata.has_backward))
    operands = (do_tensor, q, k, v, o_tensor, lse_tensor, *mask_plan.tensors, dlse_tensor)
    scalars = (softmax_factor(q, softmax_scale),)
    grads = call(BACKWARD, operands, options, scalars, backend=backend, stream=stream)
    placed = deliver(grads, (dq_tensor, dk_tensor, dv_tensor), _GRADIENTS, stream=stream)
    return TupleDict(zip(_GRADIENTS, placed, strict=True))
