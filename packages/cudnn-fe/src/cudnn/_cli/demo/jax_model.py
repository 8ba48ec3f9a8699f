"""The model in JAX. Its two variants differ in one function: the first half of the MLP, or the experts."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cudnn._cli.demo.config import BALANCE, DemoConfig
from cudnn._cli.demo.jax_mixture import experts_by_jax, experts_by_op, mixture
from cudnn._cli.demo.trainer import ADAM_BETAS, ADAM_EPSILON, Gradients, Routing
from cudnn._cli.demo.weights import Layer, MixtureLayer, Weights
from cudnn_fe import gemm

__all__ = ["JaxTrainer"]


def _gated_by_op(x: Array, up_gate: Array) -> Array:
    """SwiGLU of ``x @ up_gate.T`` through this project's op: (rows, width), (2 * hidden, width) to (rows, hidden)."""
    _, activated = gemm.gemm_swiglu_jax_forward(x[:, :, None], up_gate[:, :, None], c_dtype=jnp.bfloat16)
    result: Array = activated[:, :, 0]
    return result


def _gated_by_jax(x: Array, up_gate: Array) -> Array:
    """The same in plain JAX ops, rounded to bfloat16 at the same place."""
    pairs = (x @ up_gate.T).astype(jnp.float32).reshape(x.shape[0], -1, 2, 32)
    activated = pairs[:, :, 0] * jax.nn.silu(pairs[:, :, 1])
    return activated.reshape(x.shape[0], -1).astype(jnp.bfloat16)


def _norm(x: Array, gain: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


class _Output(NamedTuple):
    """Logits; what spreads bytes over experts, summed over the blocks; the experts of each byte, block by block."""

    logits: Array
    balance: Array
    routing: tuple[Array, ...]


def _forward(
    weights: Weights[Array], tokens: Array, given: tuple[Array, ...] | None, config: DemoConfig, through_op: bool
) -> _Output:
    batch, context = tokens.shape
    compute = jnp.dtype(config.compute_dtype)

    def linear(x: Array, weight: Array) -> Array:
        return x.astype(compute) @ weight.astype(compute).T

    def attention(x: Array, layer: Layer[Array] | MixtureLayer[Array]) -> Array:
        projected = linear(x, layer.query_key_value).reshape(batch, context, 3, config.heads, -1)
        query, key, value = (projected[:, :, part] for part in range(3))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return linear(mixed.reshape(batch * context, -1), layer.attention_out)

    gated, experts = (_gated_by_op, experts_by_op) if through_op else (_gated_by_jax, experts_by_jax)
    before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
    x = (weights.embedding[tokens] + weights.previous[before] + weights.position[:context]).reshape(batch * context, -1)
    balance, routing = jnp.zeros(()), []
    for index, layer in enumerate(weights.layers):
        x = x + attention(_norm(x, layer.attention_norm), layer).astype(jnp.float32)
        inner = _norm(x, layer.mlp_norm)
        if isinstance(layer, MixtureLayer):
            y, loss, chosen = mixture(inner, layer, compute, experts, given[index] if given else None)
            balance = balance + loss
            routing.append(chosen)
        else:
            y = linear(gated(inner.astype(compute), layer.up_gate.astype(compute)), layer.down).astype(jnp.float32)
        x = x + y
    logits = linear(_norm(x, weights.final_norm), weights.embedding).astype(jnp.float32)
    return _Output(logits, balance, tuple(routing))


def _loss(
    weights: Weights[Array], tokens: Array, given: tuple[Array, ...] | None, config: DemoConfig, through_op: bool
) -> tuple[Array, tuple[Array, tuple[Array, ...]]]:
    """What is minimised; nats per byte and the routing."""
    out = _forward(weights, tokens[:, :-1], given, config, through_op)
    log_probability = jax.nn.log_softmax(out.logits)
    loss = -jnp.mean(jnp.take_along_axis(log_probability, tokens[:, 1:].reshape(-1, 1), axis=1))
    return loss + BALANCE * out.balance, (loss, out.routing)


class _State(NamedTuple):
    weights: Weights[Array]
    first_moment: Weights[Array]
    second_moment: Weights[Array]
    steps: Array


@jax.jit
def _adam(state: _State, gradients: Weights[Array], rate: Array) -> _State:
    steps = state.steps + 1
    beta1, beta2 = ADAM_BETAS
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.first_moment, gradients)
    second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.second_moment, gradients)

    def moved(weight: Array, m: Array, v: Array) -> Array:
        return weight - rate * (m / (1 - beta1**steps)) / (jnp.sqrt(v / (1 - beta2**steps)) + ADAM_EPSILON)

    return _State(jax.tree.map(moved, state.weights, first, second), first, second, steps)


class JaxTrainer:
    """Implements `Trainer` with jax.jit, jax.grad and Adam."""

    def __init__(self, config: DemoConfig, initial: Weights[NDArray[np.float32]], *, through_op: bool) -> None:
        weights = jax.tree.map(jnp.asarray, initial)
        zeros = jax.tree.map(jnp.zeros_like, weights)
        self._state = _State(weights, zeros, zeros, jnp.zeros((), jnp.int32))
        loss = partial(_loss, config=config, through_op=through_op)
        self._gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))
        self._forward = jax.jit(partial(_forward, config=config, through_op=through_op))

    def weights(self) -> Weights[NDArray[np.float32]]:
        """A copy of the present weights."""
        copy: Weights[NDArray[np.float32]] = jax.tree.map(np.asarray, self._state.weights)
        return copy

    def gradients(
        self, weights: Weights[NDArray[np.float32]], tokens: NDArray[np.int32], routing: Routing | None = None
    ) -> Gradients:
        """Loss and gradients of a batch at ``weights``; changes nothing."""
        (_, (loss, used)), values = self._gradients(weights, jnp.asarray(tokens), routing or None)
        return Gradients(float(loss), jax.tree.map(np.asarray, values), tuple(np.asarray(x, np.int32) for x in used))

    def step(self, tokens: NDArray[np.int32], rate: float) -> float:
        """One Adam step; returns the loss before it, after the device has finished."""
        (_, (loss, _)), gradients = self._gradients(self._state.weights, jnp.asarray(tokens), None)
        self._state = _adam(self._state, gradients, jnp.float32(rate))
        jax.block_until_ready(self._state)
        return float(loss)

    def next_byte_logits(self, window: NDArray[np.int32], last: int) -> NDArray[np.float32]:
        """(256,) logits of the byte after position ``last``."""
        return np.asarray(self._forward(self._state.weights, jnp.asarray(window)[None], None).logits[last])
