"""The derivative of LayerNorm-Multiply-SiLU-Dropout under automatic differentiation."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError
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
    from cudnn_fe.norm_rope.hstu_lmsd.op import BACKWARD  # the module that names this one

    dy, *of_statistics = cotangents
    if any(cotangent is not None for cotangent in of_statistics[:2]):
        raise NotYetSupportedError(
            "mean_tensor, rstd_tensor",
            got="a gradient",
            wanted="none: they are saved for the backward alone",
            remedy="use y only",
        )
    x, u, weight, bias, mean, rstd, *mask = saved
    flags = tuple((name, value) for name, value in options if name != "dropout")
    operands = (dy, x, u, weight, bias, mean, rstd, mask[0] if mask else None)
    dx, du, *affine = call(BACKWARD, operands, (*flags, ("compute_dweight", needed[2])), (scalars[1],), backend=backend)
    return dx, du, affine[0] if needed[2] else None, affine[-1], None


GRADIENT = Gradient(
    name="hstu_lmsd_forward",
    save=lambda operands, outputs: (*operands[:4], *outputs[1:]),
    backward=_backward,
    explicit="hstu_lmsd_backward",
    with_options=True,
)
