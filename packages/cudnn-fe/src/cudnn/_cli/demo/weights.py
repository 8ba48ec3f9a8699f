"""The model's weights as a tree that torch, JAX and NumPy share, and their initial values."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cudnn._cli.demo.config import VOCABULARY, DemoConfig

__all__ = ["Layer", "MixtureLayer", "Weights", "count", "flatten", "initial_weights", "names", "unflatten"]

T = TypeVar("T")


class Layer(NamedTuple, Generic[T]):
    """One block. Projections are (out, in); ``up_gate`` is (2 * hidden, width): 32 value rows, 32 gate rows, ..."""

    attention_norm: T
    query_key_value: T
    attention_out: T
    mlp_norm: T
    up_gate: T
    down: T


class MixtureLayer(NamedTuple, Generic[T]):
    """A block with experts. ``router`` is (experts, width), ``up_gate`` (experts, 2 * hidden, width) with 32 gate rows,
    32 rows of what they gate, ..., ``down`` (experts, width, hidden)."""

    attention_norm: T
    query_key_value: T
    attention_out: T
    mlp_norm: T
    router: T
    up_gate: T
    down: T


class Weights(NamedTuple, Generic[T]):
    """The whole model: tables for a byte, the byte before it and the position; ``embedding`` is also the output's."""

    embedding: T
    previous: T
    position: T
    layers: tuple[Layer[T] | MixtureLayer[T], ...]
    final_norm: T


def flatten(weights: Weights[T]) -> list[T]:
    """Every array, in a fixed order."""
    blocks = [array for layer in weights.layers for array in layer]
    return [weights.embedding, weights.previous, weights.position, *blocks, weights.final_norm]


def unflatten(arrays: list[T], config: DemoConfig) -> Weights[T]:
    """The inverse of `flatten`."""
    embedding, previous, position, *blocks, final_norm = arrays
    kind: Any = MixtureLayer if config.experts else Layer
    size = len(kind._fields)
    layers = tuple(kind(*blocks[start : start + size]) for start in range(0, len(blocks), size))
    return Weights(embedding, previous, position, layers, final_norm)


def names(weights: Weights[Any]) -> list[str]:
    """A name for every array, in the order of `flatten`."""
    blocks = [f"layer {index} {field}" for index, layer in enumerate(weights.layers) for field in layer._fields]
    return ["embedding", "previous", "position", *blocks, "final_norm"]


def count(weights: Weights[NDArray[np.float32]]) -> int:
    """How many parameters the model has."""
    return sum(array.size for array in flatten(weights))


def initial_weights(config: DemoConfig, seed: int) -> Weights[NDArray[np.float32]]:
    """Scaled normal values, the residual projections smaller with depth; the same for every framework."""
    generator = np.random.default_rng(seed)

    def normal(rows: int, columns: int, scale: float, *stack: int) -> NDArray[np.float32]:
        return (generator.standard_normal((*stack, rows, columns)) * scale).astype(np.float32)

    def layer() -> Layer[NDArray[np.float32]] | MixtureLayer[NDArray[np.float32]]:
        width, hidden = config.width, config.hidden
        residual = (2 * config.layers) ** -0.5
        stack = (config.experts,) if config.experts else ()
        shared = {
            "attention_norm": np.ones(width, np.float32),
            "query_key_value": normal(3 * width, width, width**-0.5),
            "attention_out": normal(width, width, residual * width**-0.5),
            "mlp_norm": np.ones(width, np.float32),
            "up_gate": normal(2 * hidden, width, width**-0.5, *stack),
            "down": normal(width, hidden, residual * hidden**-0.5, *stack),
        }
        if not config.experts:
            return Layer(**shared)
        return MixtureLayer(router=normal(config.experts, width, width**-0.5), **shared)

    embedding = normal(VOCABULARY, config.width, 0.02)
    previous = normal(VOCABULARY, config.width, 0.02)
    position = normal(config.context, config.width, 0.02)
    layers = tuple(layer() for _ in range(config.layers))
    return Weights(embedding, previous, position, layers, np.ones(config.width, np.float32))
