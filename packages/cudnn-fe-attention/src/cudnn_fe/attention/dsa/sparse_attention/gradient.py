"""The derivative of sparse attention, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

import array_api_compat

from cudnn_fe.attention.dsa.sparse_attention.op import BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.gradient import Gradient

__all__ = ["GRADIENT"]


def _save(operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*operands, outputs[0], outputs[2])


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
) -> tuple[Any, ...]:
    q, kv, ids, sink, lengths, out, lse = saved
    dout, *others = cotangents
    if any(other is not None for other in others):
        raise NotYetSupportedError(
            "max_logits, lse, lse_indexer",
            got="a gradient",
            wanted="gradients of out alone: the statistics have no derivative here",
            remedy="detach them",
        )
    xp = array_api_compat.array_namespace(q)
    given = xp.full_like(lse[0], float("-inf")) if sink is None and lse.shape[0] else sink
    if given is None:
        given = xp.zeros_like(xp.sum(lse, axis=0))  # no queries: every gradient is 0
    dq, dkv, d_sink = call(BACKWARD, (q, kv, out, dout, lse, given, ids, lengths), (), scalars, backend=backend)
    every = (dq, dkv, None, None if sink is None else d_sink, None)
    return tuple(grad if wanted else None for grad, wanted in zip(every, needed, strict=True))


GRADIENT = Gradient(
    name="dsa_sparse_attention_forward",
    save=_save,
    backward=_backward,
    explicit="dsa_sparse_attention_backward",
)
