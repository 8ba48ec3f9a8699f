"""Mixtures of experts in JAX: the router, and the way of the rows to their experts and back. Both models share it;
what an expert computes goes through this project's ops in one of them, and through plain JAX ops in the other."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from cudnn._cli.demo.config import CHOSEN
from cudnn._cli.demo.weights import MixtureLayer
from cudnn_fe import grouped

__all__ = ["Experts", "experts_by_jax", "experts_by_op", "mixture"]

# (rows by expert, ends of the experts' rows, up and gate weights, down weights, gate of each row) to rows
Experts = Callable[[Array, Array, Array, Array, Array], Array]


def experts_by_op(rows: Array, ends: Array, up_gate: Array, down: Array, gates: Array) -> Array:
    """Each row through its expert's MLP, times its gate, by this project's ops."""
    one = jnp.ones(ends.shape, jnp.float32)
    hidden = grouped.grouped_gemm_glu_jax_forward(
        rows, ends, one, prob_tensor=jnp.ones_like(gates), b_tensor=up_gate, d_dtype=rows.dtype, c_dtype="float32"
    )
    result: Array = grouped.grouped_gemm_jax_forward(
        hidden["d_tensor"], ends, one, prob_tensor=gates, b_tensor=down, d_dtype=rows.dtype
    )[0]
    return result


def experts_by_jax(rows: Array, ends: Array, up_gate: Array, down: Array, gates: Array) -> Array:
    """The same in plain JAX ops."""
    counts = jnp.diff(ends, prepend=0)

    def product(x: Array, weights: Array) -> Array:
        return jax.lax.ragged_dot(x, weights.transpose(0, 2, 1), counts, preferred_element_type=jnp.float32)

    pairs = product(rows, up_gate).reshape(rows.shape[0], -1, 2, 32)
    hidden = (jax.nn.silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(rows.shape[0], -1).astype(rows.dtype)
    return (product(hidden, down) * gates[:, None]).astype(rows.dtype)


def mixture(
    x: Array, layer: MixtureLayer[Array], compute: DTypeLike, experts: Experts, chosen: Array | None
) -> tuple[Array, Array, Array]:
    """A block's experts on (rows, width).

    Args:
        x: The rows.
        layer: The block's weights.
        compute: Element type of the experts' operands.
        experts: What computes them.
        chosen: (rows, `CHOSEN`) experts, or None for those that the router likes best.

    Returns:
        The result; the loss that is least when experts get equally many rows; the experts chosen.
    """
    likings = jax.nn.softmax(x.astype(jnp.float32) @ layer.router.T, axis=1)
    if chosen is None:
        chosen = jax.lax.top_k(likings, CHOSEN)[1]
    gates = jnp.take_along_axis(likings, chosen, axis=1)
    gates = gates / gates.sum(axis=1, keepdims=True)
    count = layer.router.shape[0]
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    ends = jnp.searchsorted(flat[order], jnp.arange(count), side="right").astype(jnp.int32)
    rows = jnp.repeat(x.astype(compute), CHOSEN, axis=0)[order]
    y = experts(rows, ends, layer.up_gate.astype(compute), layer.down.astype(compute), gates.reshape(-1)[order])
    combined = y[jnp.argsort(order)].reshape(x.shape[0], CHOSEN, -1).astype(jnp.float32).sum(axis=1)
    share = jnp.diff(ends, prepend=0) / flat.size
    return combined, count * (share * likings.mean(axis=0)).sum(), chosen
