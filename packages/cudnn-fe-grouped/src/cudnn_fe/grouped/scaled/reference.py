"""The definition of the block-scaled grouped GEMMs that go forward, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudnn_fe.core.arrays import astype, cast
from cudnn_fe.core.pairs import split_pairs
from cudnn_fe.grouped.activation import gated
from cudnn_fe.grouped.groups import Groups, groups_of, keep, of_rows
from cudnn_fe.grouped.scaled.pieces import ends_of, finished, largest, nothing, rectified, scaled_product
from cudnn_fe.grouped.unfused.reference import bias_of_rows

if TYPE_CHECKING:
    from cudnn_fe.grouped.scaled.forward import ScaledForward

__all__ = ["activated", "clamped_tanh", "pre_activation", "scaled_forward", "squared"]


def scaled_forward(
    problem: ScaledForward,
    xp: Any,
    a: Any,
    b: Any,
    sfa: Any,
    sfb: Any,
    offsets: Any,
    alpha: Any,
    prob: Any,
    norm: Any,
    bias: Any,
    row_scale: Any,
    *numbers: float,
) -> tuple[Any, ...]:
    """``(C, D, D by columns, amax, scales of D, scales of D by columns)``, float32 until the end.

    Args:
        problem: The bound problem; names activation, dtypes and wanted results.
        xp: Array namespace of the operands.
        a: (M, K) codes.
        b: (L, N, K) codes, or addresses.
        sfa: Packed scales of A, flat.
        sfb: Packed scales of the weights, flat, or addresses.
        offsets: (L,) ends.
        alpha: (L,).
        prob: (M,) or None, which is 1.
        norm: One element, or None.
        bias: (N, L) or None.
        row_scale: (M,) or None.
        *numbers: Those of a gated activation, see `gated`; none for others.
    """
    if 0 in problem.extents[:2]:
        return nothing(problem, xp, a)
    ends = ends_of(problem, xp, offsets)
    groups = groups_of(xp, ends, a.shape[0])
    x = pre_activation(problem, xp, groups, (a, b, sfa, sfb), alpha, prob, bias, row_scale)
    y = keep(xp, groups, activated(problem, xp, x, prob, *numbers))
    amax = largest(xp, groups, y, -np.inf)[:, None]
    c = x[:0] if problem.c_dtype is None else x
    return cast(c, problem.c_dtype or "bfloat16"), *finished(problem, xp, groups, y, norm, ends, "epilogue", amax)


def pre_activation(
    problem: ScaledForward,
    xp: Any,
    groups: Groups,
    operands: tuple[Any, ...],
    alpha: Any,
    prob: Any,
    bias: Any,
    row_scale: Any,
) -> Any:
    """The scaled product plus bias; without an activation prob multiplies the bias, where there is one."""
    scale = of_rows(xp, groups, alpha)[:, None]
    if row_scale is not None:
        scale = scale * row_scale[:, None]
    x = scaled_product(problem, xp, groups, *operands) * scale
    if bias is not None:
        shift = bias_of_rows(xp, groups, bias)
        if problem.epilogue == "none" and prob is not None:
            shift = shift * astype(prob, "float32")[:, None]
        x = x + shift
    return keep(xp, groups, x)


def activated(problem: ScaledForward, xp: Any, x: Any, prob: Any, *numbers: float) -> Any:
    """The activation of ``x`` (M, N) times each row's prob."""
    gate = None if prob is None else astype(prob, "float32")[:, None]
    if problem.gated:
        value = gated(xp, problem.epilogue, *split_pairs(xp, x), *numbers)
    elif problem.epilogue == "srelu":
        return squared(xp, x, problem.tanh_clamp_scale, gate)
    else:
        return x if gate is None or problem.bias_tensor is not None else x * gate
    return value if gate is None else value * gate


def squared(xp: Any, x: Any, scale: float | None, gate: Any) -> Any:
    """The squared ReLU of ``x``, bounded by ``scale`` squared if that is given, times the row factors."""
    if scale is None:
        r = rectified(xp, x)
        return r * r if gate is None else (r * r) * gate
    t = clamped_tanh(xp, x, scale)
    square = float(np.float32(scale * scale))
    return t * t * square if gate is None else (t * t) * (gate * square)


def clamped_tanh(xp: Any, x: Any, scale: float) -> Any:
    """``tanh(max(x, 0) / scale)`` with NaN kept; the quotient is a float32 factor."""
    return rectified(xp, xp.tanh(x * float(np.float32(1.0 / scale))))
