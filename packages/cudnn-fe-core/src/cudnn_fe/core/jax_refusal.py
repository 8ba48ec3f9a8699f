"""A JAX operation that exists on no platform: lowering it raises the reason why nothing serves the call there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from cudnn_fe.core.call import physical_shape
from cudnn_fe.core.errors import BackendError
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["refusal"]

_refuse = Primitive("cudnn_fe_refuse")
_refuse.multiple_results = True


def refusal(error: BackendError, outputs: Sequence[TensorSpec]) -> Callable[..., Any]:
    """A function of arrays that traces like the op but raises ``error`` when XLA compiles it.

    Both platforms' code is traced wherever a jitted function runs, so a refusal for CUDA must wait until then.
    """
    results = tuple((physical_shape(spec), spec.dtype.name) for spec in outputs)

    def call(*arrays: Any) -> tuple[Any, ...]:
        return tuple(_refuse.bind(*arrays, error=error, results=results))

    return call


def _abstract(*_: Any, error: BackendError, results: tuple[tuple[tuple[int, ...], str], ...]) -> list[ShapedArray]:
    del error
    return [ShapedArray(shape, jnp.dtype(name)) for shape, name in results]


def _lower(*_: Any, error: BackendError, results: Any) -> Any:
    del results
    raise error


_refuse.def_abstract_eval(_abstract)
mlir.register_lowering(_refuse, _lower)
