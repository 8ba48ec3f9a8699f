"""The derivative of the engram gate under automatic differentiation."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.gradient import Gradient

__all__ = ["GRADIENT"]


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
) -> tuple[Any, ...]:
    from cudnn_fe.norm_rope.engram_gate import engram_gate_saved_backward  # the module that imports this one

    del scalars, needed  # one kernel computes all of them
    x, kv, weight, _, of_rows = saved
    grad_out, grad_saved = cotangents
    if grad_saved is not None:
        raise NotYetSupportedError(
            "saved", got="a gradient", wanted="none: it is saved for the backward alone", remedy="use out only"
        )
    return (*engram_gate_saved_backward(x, kv, weight, of_rows, grad_out, backend=backend), None)


GRADIENT = Gradient(
    name="engram_gate_saved_forward",
    save=lambda operands, outputs: (*operands, outputs[1]),
    backward=_backward,
    explicit="engram_gate_saved_backward",
)
