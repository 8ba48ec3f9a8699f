"""The derivative of flex attention, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import zeros_like
from cudnn_fe.attention.flex.op import BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.gradient import Gradient

__all__ = ["GRADIENT"]


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    q, k, v, ends, first, second, o, lse = saved
    do, dlse, _ = cotangents  # the largest score of a head is a statistic: it has no derivative here
    operands = (zeros_like(o) if do is None else do, q, k, v, o, lse, ends, first, second, dlse)
    grads = call(BACKWARD, operands, options, scalars, backend=backend)
    return tuple(grad if wanted else None for grad, wanted in zip((*grads, None, None, None), needed, strict=True))


GRADIENT = Gradient(
    name="flex_attention_forward",
    save=lambda operands, outputs: (*operands, *outputs[:2]),
    backward=_backward,
    explicit="flex_attention_backward",
    with_options=True,
)
