"""The derivative of the CSA compressor, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.csa_compressor.op import BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.gradient import Gradient

__all__ = ["GRADIENT"]


def _save(operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    del outputs
    return operands


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    kept = tuple(pair for pair in options if pair[0] != "total_comp")
    grads = call(BACKWARD, (*saved, *cotangents), kept, scalars, backend=backend)
    return tuple(grad if wanted else None for grad, wanted in zip((*grads, None, None), needed, strict=True))


GRADIENT = Gradient(
    name="csa_compressor_forward",
    save=_save,
    backward=_backward,
    explicit="csa_compressor_backward",
    with_options=True,
)
