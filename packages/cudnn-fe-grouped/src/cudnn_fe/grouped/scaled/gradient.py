"""The derivative of the block-scaled forwards in alpha, prob, bias and row scale; quantised operands carry none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.call import call
from cudnn_fe.core.codecs.bits import namespace_of
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.pairs import interleave, split_pairs
from cudnn_fe.grouped.activation import gated_derivative
from cudnn_fe.grouped.groups import keep, of_rows, owners_of
from cudnn_fe.grouped.linear import contiguous
from cudnn_fe.grouped.row_sums import row_sums
from cudnn_fe.grouped.scaled.pieces import rectified
from cudnn_fe.grouped.scaled.reference import clamped_tanh, squared
from cudnn_fe.grouped.unfused.reference import bias_of_rows

__all__ = ["GRADIENT"]

_ALPHA, _PROB, _BIAS, _ROW_SCALE = 5, 6, 8, 9


def _product(saved: tuple[Any, ...], xp: Any, given: dict[str, Any], backend: str | None) -> Any:
    """The unscaled product, in float32, once more."""
    from cudnn_fe.grouped.quant.op import FORWARD  # its rule is this module's

    wanted = {
        "epilogue": "none",
        "c_dtype": None,
        "d_dtype": "float32",
        "quantised": False,
        "expert_columns": False,
        "keep_amax": False,
        "tanh_clamp_scale": None,
    }
    operands = (*saved[:5], xp.ones_like(saved[_ALPHA]), None, None, None, None)
    return call(FORWARD, operands, tuple((given | wanted).items()), backend=backend)[1]


def _through(xp: Any, given: dict[str, Any], x: Any, scalars: tuple[float, ...]) -> tuple[Any, Any]:
    """The activation of ``x``, and its slope as a function of the gradient of the activation."""
    if given["epilogue"] == "srelu":
        scale = given["tanh_clamp_scale"]
        if scale is None:
            slope = 2.0 * rectified(xp, x)
        else:
            t = clamped_tanh(xp, x, scale)
            slope = float(np.float32(2.0 * scale)) * (t - t * t * t)
        return squared(xp, x, scale, None), lambda dy: dy * slope
    d_gate, d_up, value = gated_derivative(xp, given["epilogue"], *split_pairs(xp, x), *scalars)
    return value, lambda dy: interleave(xp, dy * d_gate, dy * d_up)


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    found: list[Any] = [None] * len(needed)
    given, rows = dict(options), saved[0].shape[0]
    dc, dd = (None if x is None or x.shape[0] != rows else x for x in cotangents[:2])
    if rows == 0 or (dc is None and dd is None):
        return tuple(found)
    if given["quantised"] and dd is not None:
        raise NotYetSupportedError(
            "d_tensor",
            got="a gradient of a result with scales",
            wanted="gradients of results without scales",
            remedy="call the explicit backward function with the gradient of what D stands for",
        )
    xp = namespace_of(saved[_ALPHA])
    alpha, prob, bias, row_scale = (saved[place] for place in (_ALPHA, _PROB, _BIAS, _ROW_SCALE))
    offsets = xp.zeros_like(saved[4]) + rows if given["single_group"] else saved[4]
    groups = owners_of(xp, offsets, rows)
    product = keep(xp, groups, _product(saved, xp, given, backend))
    by_expert = of_rows(xp, groups, alpha)[:, None]
    by_row = 1.0 if row_scale is None else keep(xp, groups, row_scale)[:, None]
    x = product * by_expert * by_row
    shift = None if bias is None else keep(xp, groups, bias_of_rows(xp, groups, bias))
    gate = None if prob is None else keep(xp, groups, astype(prob, "float32"))[:, None]
    dd = None if dd is None else keep(xp, groups, astype(dd, "float32"))
    dx = None if dc is None else keep(xp, groups, astype(dc, "float32"))
    dprob = d_shift = None
    if given["epilogue"] == "none":
        if dd is not None:
            dprob = xp.sum(dd * (x if shift is None else shift), axis=1)
            d_shift = dd if gate is None else dd * gate
            dx = d_shift if shift is None else dd
    else:
        if dd is not None:
            value, slope = _through(xp, given, x if shift is None else x + shift, scalars)
            dprob = xp.sum(dd * value, axis=1)
            through = slope(dd if gate is None else dd * gate)
            dx = through if dx is None else dx + through
        d_shift = dx

    def sums(rows: Any) -> Any:
        return row_sums(contiguous(rows), offsets, backend=backend)

    return _placed(xp, sums, saved, needed, (dx * product, d_shift, dprob, by_expert, by_row))


def _placed(
    xp: Any, sums: Callable[[Any], Any], saved: tuple[Any, ...], needed: tuple[bool, ...], parts: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The gradients at their operands' places, in their types."""
    scaled, d_shift, dprob, by_expert, by_row = parts
    found: list[Any] = [None] * len(needed)
    dots = xp.sum(scaled * by_row, axis=1)
    if needed[_ALPHA]:
        found[_ALPHA] = sums(dots[:, None])[:, 0]
    if needed[_PROB] and saved[_PROB] is not None and dprob is not None:
        found[_PROB] = astype(dprob, dtype(saved[_PROB].dtype).name)
    if needed[_BIAS] and saved[_BIAS] is not None:
        total = xp.permute_dims(sums(d_shift), (1, 0))
        found[_BIAS] = astype(total, dtype(saved[_BIAS].dtype).name)
    if needed[_ROW_SCALE] and saved[_ROW_SCALE] is not None:
        found[_ROW_SCALE] = xp.sum(scaled * by_expert, axis=1)
    return tuple(found)


GRADIENT = Gradient(
    name="the block-scaled grouped GEMM",
    save=lambda operands, outputs: operands,
    backward=_backward,
    explicit="the explicit backward function",
    with_options=True,
)
