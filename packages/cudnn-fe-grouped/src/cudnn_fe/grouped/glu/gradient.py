"""The derivative of the grouped GEMM with a gated activation: of the activation, then two grouped GEMMs."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.grouped.activation import gated_derivative
from cudnn_fe.grouped.arrays import interleave, split_pairs
from cudnn_fe.grouped.groups import groups_of, keep, sum_rows
from cudnn_fe.grouped.linear import form_of, linear_gradients, namespace, product

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
    xp = namespace(a)
    groups = groups_of(xp, offsets, a.shape[0])
    ds = None if dc is None else keep(xp, groups, astype(dc, "float32"))
    dprob = dbias = None
    if dd is not None:
        kept = c.shape[0] == a.shape[0]
        pre = c if kept else product(a, b, offsets, alpha, bias, form=form_of(options), backend=backend)
        gate, up = split_pairs(xp, keep(xp, groups, astype(pre, "float32")))
        d_gate, d_up, value = gated_derivative(xp, dict(options)["act_func"], gate, up, scalars[0])
        dd = keep(xp, groups, astype(dd, "float32"))
        weighted = dd * keep(xp, groups, prob)[:, None]
        through = interleave(xp, weighted * d_gate, weighted * d_up)
        ds = through if ds is None else ds + through
        if needed[4]:
            dprob = xp.sum(dd * value, axis=1)
    if bias is not None and needed[5]:
        dbias = astype(xp.permute_dims(sum_rows(xp, groups, ds), (1, 0)), dtype(bias.dtype).name)
    da, db, dalpha = linear_gradients(xp, groups, (a, b, offsets, alpha), ds, needed, backend, form_of(options))
    return da, db, None, dalpha, dprob, dbias


GRADIENT = Gradient(
    name="grouped_gemm_glu_forward",
    save=lambda operands, outputs: (*operands, outputs[1]),
    backward=_backward,
    explicit="grouped_gemm_glu_backward",
    with_options=True,
)
