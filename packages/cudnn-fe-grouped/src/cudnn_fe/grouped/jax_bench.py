"""The grouped GEMM in JAX, beside JAX's own: for a benchmark whose operands are torch tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the operands are torch's: it needs the card too
import jax
import jax.numpy as jnp

from cudnn_fe.grouped.unfused import grouped_gemm_jax_forward

__all__ = ["products"]

Product = Callable[..., Sequence[Any]]


@partial(jax.jit, static_argnames="backend")
def _ours(a: Any, ends: Any, alpha: Any, b: Any, prob: Any, backend: str | None) -> Any:
    return grouped_gemm_jax_forward(a, ends, alpha, b_tensor=b, prob_tensor=prob, backend=backend)[0]


@jax.jit
def _ragged_dot(a: Any, ends: Any, b: Any) -> Any:
    return jax.lax.ragged_dot(a, b.transpose(0, 2, 1), jnp.diff(ends, prepend=0))


def products(backend: str | None) -> tuple[Product, Product]:
    """This project's entry by a backend, and ``jax.lax.ragged_dot``, on the operands of `grouped_gemm_forward`.

    Each call waits for its result: XLA launches on a stream of its own.
    """

    @cache
    def arrays(*tensors: Any) -> list[Any]:
        return [jnp.from_dlpack(tensor) for tensor in tensors]

    def ours(*tensors: Any) -> Sequence[Any]:
        return _tensor(_ours(*arrays(*tensors), backend))

    def ragged_dot(*tensors: Any) -> Sequence[Any]:
        a, ends, _, b, _ = arrays(*tensors)  # alpha and prob are ones
        return _tensor(_ragged_dot(a, ends, b))

    return ours, ragged_dot


def _tensor(array: Any) -> Sequence[Any]:
    import torch  # the operands are its

    return (torch.from_dlpack(jax.block_until_ready(array)),)
