"""The derivative of Mamba-2's layer, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import zeros_like
from cudnn_fe.attention.mamba2.op import BACKWARD
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
    *operands, out = saved
    dout, by_final = cotangents
    dout = zeros_like(out) if dout is None else dout
    by_final = by_final if dict(options)["return_final_state"] else None
    grads = iter(call(BACKWARD, (dout, by_final, *operands), (), backend=backend))
    found = [None if x is None else next(grads) for x in operands]
    return tuple(grad if wanted else None for grad, wanted in zip(found, needed, strict=True))


GRADIENT = Gradient(
    name="mamba2_forward",
    save=lambda operands, outputs: (*operands, outputs[0]),
    backward=_backward,
    explicit="mamba2_backward",
    with_options=True,
)
