"""The derivative of the grouped GEMM with a gated activation: of the activation, then two grouped GEMMs."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.codecs.bits import namespace_of
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.grouped.glu_gradient import glu_gradient
from cudnn_fe.grouped.groups import keep, owners_of
from cudnn_fe.grouped.linear import contiguous, form_of, linear_gradients, product
from cudnn_fe.grouped.row_sums import row_sums

__all__ = ["GRADIENT"]


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    a, b, offsets, alpha, prob, bias, c = saved
    dd, dc = cotangents
    dc = None if dc is None or dc.shape[0] != a.shape[0] else dc
    if a.shape[0] == 0 or (dd is None and dc is None):
        return (None,) * 6
    xp = namespace_of(a)
    # The gradient of the sums themselves is wanted by those of alpha and of the bias alone; alpha times it by the rest.
    apart = needed[3] or (bias is not None and needed[5])
    groups = owners_of(xp, offsets, a.shape[0]) if apart or dd is None else None
    ds = scaled = dprob = dbias = None
    if dd is None:
        assert groups is not None
        ds = keep(xp, groups, astype(dc, "float32"))
    else:
        kept = c.shape[0] == a.shape[0]
        pre = c if kept else product(a, b, offsets, alpha, bias, form=form_of(options), backend=backend)
        through, dprob = glu_gradient(
            pre, contiguous(dd), offsets, prob, None if apart else alpha, None if dc is None else contiguous(dc),
            act_func=dict(options)["act_func"], linear_offset=scalars[0],
            kind="float32" if apart else dtype(a.dtype).name, backend=backend,
        )  # fmt: skip
        ds, scaled = (through, None) if apart else (None, through)
    if bias is not None and needed[5]:
        total = row_sums(contiguous(ds), offsets, backend=backend)
        dbias = astype(xp.permute_dims(total, (1, 0)), dtype(bias.dtype).name)
    operands, form = (a, b, offsets, alpha), form_of(options)
    da, db, dalpha = linear_gradients(xp, groups, operands, ds, needed, backend, form, scaled)
    return da, db, None, dalpha, dprob, dbias


GRADIENT = Gradient(
    name="grouped_gemm_glu_forward",
    save=lambda operands, outputs: (*operands, outputs[1]),
    backward=_backward,
    explicit="grouped_gemm_glu_backward",
    with_options=True,
)
