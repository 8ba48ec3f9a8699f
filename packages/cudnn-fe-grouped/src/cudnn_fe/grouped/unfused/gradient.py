"""The derivative of the unfused grouped GEMM: two grouped GEMMs, and sums over rows."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.codecs.bits import namespace_of
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.grouped.groups import keep, owners_of
from cudnn_fe.grouped.linear import contiguous, form_of, linear_gradients, product
from cudnn_fe.grouped.row_sums import row_sums
from cudnn_fe.grouped.unfused.reference import bias_of_rows

__all__ = ["GRADIENT"]


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    a, b, offsets, alpha, prob, bias = saved
    dd, dc = cotangents
    dc = None if dc is None or dc.shape[0] != a.shape[0] else dc
    if a.shape[0] == 0 or (dd is None and dc is None):
        return (None,) * 6
    xp = namespace_of(a)
    groups = owners_of(xp, offsets, a.shape[0])
    dd, dc = (None if x is None else keep(xp, groups, astype(x, "float32")) for x in (dd, dc))
    gate = None if prob is None else keep(xp, groups, prob)[:, None]
    dprob = dbias = None
    ds = dd
    if bias is None and dd is not None and gate is not None:
        ds = dd * gate
        if needed[4]:
            dprob = xp.sum(dd * product(a, b, offsets, alpha, form=form_of(options), backend=backend), axis=1)
    if dc is not None:
        ds = dc if ds is None else ds + dc
    if bias is not None:
        if needed[4] and prob is not None:
            dprob = xp.sum(ds * keep(xp, groups, bias_of_rows(xp, groups, bias)), axis=1)
        if needed[5]:
            total = row_sums(contiguous(ds if gate is None else ds * gate), offsets, backend=backend)
            dbias = astype(xp.permute_dims(total, (1, 0)), dtype(bias.dtype).name)
    da, db, dalpha = linear_gradients(xp, groups, (a, b, offsets, alpha), ds, needed, backend, form_of(options))
    return da, db, None, dalpha, dprob, dbias


GRADIENT = Gradient(
    name="grouped_gemm_forward",
    save=lambda operands, outputs: operands,
    backward=_backward,
    explicit="grouped_gemm_wgrad_forward",
    with_options=True,
)
