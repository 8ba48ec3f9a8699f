"""The gradient of a gated activation's gates and ups: a step of the fused forward's derivative."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.grouped.glu_gradient.op import GLU_GRADIENT

__all__ = ["glu_gradient"]


def glu_gradient(
    c: Any,
    dd: Any,
    offsets: Any,
    prob: Any,
    alpha: Any = None,
    dc: Any = None,
    *,
    act_func: str,
    linear_offset: float,
    kind: Any,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """The gradient of C, and that of prob.

    Args:
        c: (M, N) values before the activation.
        dd: (M, N/2) gradient of the activation times prob.
        offsets: (L,) ends of the experts' rows.
        prob: (M,).
        alpha: (L,) that the gradient of C is multiplied by, or None.
        dc: (M, N) gradient of C from elsewhere, or None.
        act_func: ``"swiglu"`` or ``"geglu"``.
        linear_offset: What geglu adds to up.
        kind: Element type of the first result.
        backend: None or a name.
    """
    options = (("act_func", act_func), ("dtype", kind))
    ds, dprob = call(GLU_GRADIENT, (c, dd, offsets, prob, alpha, dc), options, (linear_offset,), backend=backend)
    return ds, dprob
