"""The derivative of the gated attention block, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import narrow
from cudnn_fe.attention.gated_block.op import FACTORS, PLAIN
from cudnn_fe.attention.gated_block.op_backward import BACKWARD, UNSCALED
from cudnn_fe.core.call import call
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.core.gradient import Gradient

__all__ = ["GRADIENT"]


def _save(operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    _, *record = outputs
    if len(record) == 1:
        raise OptionError(
            "save_for_backward", got="False", wanted="True where gradients are asked for", remedy="pass it as True"
        )
    lse, slab, o, *roots = record
    return (*operands, slab, o, lse, *(roots or (None, None)))


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    *inputs, lengths, _, _, _, slab, o, lse, rstd_q, rstd_k = saved
    given = dict(options)
    if hasattr(inputs[0], "requires_grad") and (needed[4] or needed[5]):  # JAX does not say what is needed
        raise NotYetSupportedError(
            "cos, sin",
            got="tables that require a gradient",
            wanted="constants: their gradients are not served",
            remedy="detach them",
        )
    norms = inputs[2] is not None
    needs = (needed[0], needed[1], needed[6], norms and (needed[2] or needed[3]))
    nothing: tuple[Any, ...] = (None,) * 11
    if cotangents[0] is None or not any(needs):
        return nothing
    chosen = (("shape", given["shape"]), ("form", given["form"]), ("needs", needs), *PLAIN, *UNSCALED)
    operands = (cotangents[0], *inputs, slab, o, lse, rstd_q, rstd_k, lengths, *[None] * 10)
    grads = iter(call(BACKWARD, operands, chosen, (1.0,) * len(FACTORS), backend=backend))
    dh, dw_qkvg, dw_o = (next(grads) if wanted else None for wanted in needs[:3])
    dq, dk = (narrow(next(grads), dtype(w.dtype).name) if needs[3] else None for w in inputs[2:4])
    return dh, dw_qkvg, dq, dk, None, None, dw_o, None, None, None, None


GRADIENT = Gradient(
    name="gated_attention_block_forward",
    save=_save,
    backward=_backward,
    explicit="gated_attention_block_backward",
    with_options=True,
)
