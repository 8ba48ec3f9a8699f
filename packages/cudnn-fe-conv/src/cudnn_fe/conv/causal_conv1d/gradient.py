"""The derivative of the causal convolution, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.conv.arrays import zeros_like
from cudnn_fe.conv.causal_conv1d.op import BACKWARD
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
    del scalars
    x, weight, bias, cu_seqlens, initial = saved
    dy, d_final = (*cotangents, None)[:2]
    kept = tuple(pair for pair in options if pair[0] != "return_final_states")
    operands = (x, weight, bias, cu_seqlens, initial, zeros_like(x) if dy is None else dy, d_final)
    results = iter(call(BACKWARD, operands, kept, backend=backend))
    dx, d_weight = next(results), next(results)
    d_bias = None if bias is None else next(results)
    d_initial = None if initial is None else next(results)
    grads = (dx, d_weight, d_bias, None, d_initial)
    return tuple(grad if wanted else None for grad, wanted in zip(grads, needed, strict=True))


GRADIENT = Gradient(
    name="causal_conv1d",
    save=lambda operands, outputs: operands,
    backward=_backward,
    explicit="causal_conv1d_backward",
    with_options=True,
)
