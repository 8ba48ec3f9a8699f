"""The derivative of the squared-ReLU GEMM in its row factors; quantised operands carry none."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.call import call
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.gemm.dsrelu.op import DSRELU
from cudnn_fe.gemm.scaled import FLOATS

__all__ = ["GRADIENT"]

_PROB = 4


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    """dprob, for which the pre-activation is computed again; the pre-activation itself does not depend on prob."""
    none: list[Any] = [None] * len(needed)
    _, upstream, _, _ = cotangents
    if upstream is None or not needed[_PROB]:
        return tuple(none)
    if dtype(upstream.dtype).name not in FLOATS:
        upstream = astype(upstream, "float32")
    a, b, sfa, sfb, prob = saved
    wanted = {name: value for name, value in options if name != "c_dtype"}
    wanted["major"] = "n" if spec_of(upstream).dense_in(1) else "m"
    wanted["result_dtype"] = "bfloat16"
    operands = (a, b, sfa, sfb, upstream, prob, None)
    none[_PROB] = call(DSRELU, operands, tuple(wanted.items()), scalars, backend=backend)[1]
    return tuple(none)


GRADIENT = Gradient(
    name="gemm_srelu_forward",
    save=lambda operands, outputs: operands[:5],
    backward=_backward,
    explicit="gemm_srelu_backward",
    with_options=True,
)
