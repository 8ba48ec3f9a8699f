"""The derivative of block-sparse attention, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import zeros_like
from cudnn_fe.attention.block_sparse.op import BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.gradient import Gradient

__all__ = ["GRADIENT"]

_SHARED = ("layout", "sparse_block_size", "block_sparse_num", "pack_gqa")


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    q, k, v, index, nums, sizes, o, lse = saved
    do, dlse = cotangents
    kept = tuple(pair for pair in options if pair[0] in _SHARED)
    operands = (zeros_like(o) if do is None else do, q, k, v, o, lse, index, nums, sizes, dlse)
    grads = call(BACKWARD, operands, (*kept, ("bucket_size_blocks", None)), scalars, backend=backend)
    return tuple(grad if wanted else None for grad, wanted in zip((*grads, None, None, None), needed, strict=True))


GRADIENT = Gradient(
    name="block_sparse_attention_forward",
    save=lambda operands, outputs: (*operands, *outputs),
    backward=_backward,
    explicit="block_sparse_attention_backward",
    with_options=True,
)
