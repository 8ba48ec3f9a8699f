"""The derivative of the gated MLP, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.gemm.swiglu_mlp.op import BACKWARD

__all__ = ["GRADIENT"]


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
) -> tuple[Any, ...]:
    if cotangents[0] is None or not any(needed):
        return (None,) * 4
    grads = iter(call(BACKWARD, (cotangents[0], *saved), (("needs", tuple(needed)),), backend=backend))
    return tuple(next(grads) if wanted else None for wanted in needed)


GRADIENT = Gradient(
    name="swiglu_mlp_forward",
    save=lambda operands, outputs: (*operands, *outputs[1:]),
    backward=_backward,
    explicit="swiglu_mlp_backward",
)
