"""The derivative of HSTU attention, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.hstu.op import BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError
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
    *packed, paged, _, _ = saved
    if paged is not None:
        raise NotYetSupportedError(
            "paged_kv_tensor",
            got="pages in a call that is differentiated",
            wanted="packed keys and values",
            remedy="gather the pages first, or call without gradients",
        )
    grads = call(BACKWARD, (*cotangents, *packed), (*options, ("deterministic", False)), scalars, backend=backend)
    return tuple(grad if wanted else None for grad, wanted in zip((*grads, *[None] * 6), needed, strict=True))


GRADIENT = Gradient(
    name="hstu_attention_forward",
    save=_save,
    backward=_backward,
    explicit="hstu_attention_backward",
    with_options=True,
)
