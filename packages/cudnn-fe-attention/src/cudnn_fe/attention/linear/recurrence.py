"""The recurrence of linear attention and its derivative, for any array namespace.

The state of a head is a matrix (V, K). For every token it decays, the part that it holds for one key is erased, a value
is written at another, and the query reads it:

    S <- decay S;  u = write - S erase;  S <- S + u key^T;  out = S query
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import is_jax_array

from cudnn_fe.attention.arrays import astype, sweep, take
from cudnn_fe.attention.sequences import Rows
from cudnn_fe.core.dtypes import dtype

__all__ = ["Kept", "Steps", "first_states", "run", "run_back", "run_states_back"]


@dataclass(frozen=True)
class Steps:
    """What the recurrence reads of every token and head, in the type that sums are taken in.

    Attributes:
        query: (T, H, K).
        key: (T, H, K).
        erase: (T, H, K), or None where nothing is erased.
        write: (T, H, V).
        decay: (T, H, 1) or (T, H, K).
        rows: The sequence of each token, and its place there.
    """

    query: Any
    key: Any
    erase: Any
    write: Any
    decay: Any
    rows: Rows


@dataclass(frozen=True)
class Kept:
    """Where states on the way go.

    Attributes:
        every: Tokens from one to the next.
        slots: The row of the one that a token finds (T,), where its place is a multiple of ``every``.
        states: The rows, to be written.
    """

    every: int
    slots: Any
    states: Any


def first_states(xp: Any, shape: tuple[int, ...], like: Any, given: Any) -> Any:
    """A fresh array of the sequences' first states (N, H, V, K): those given, or zeros."""
    if given is None:
        return xp.zeros_like(xp.broadcast_to(xp.sum(xp.zeros_like(like)), shape)) + 0.0
    return astype(given, dtype(like.dtype).name) + 0.0


def _advance(steps: Steps, xp: Any, state: Any, t: Any) -> tuple[Any, Any, Any]:
    """The state after token t, the decayed one before it, and what was written at the key."""
    decayed = state * steps.decay[t][:, None, :]
    written = steps.write[t]
    if steps.erase is not None:
        written = written - xp.sum(decayed * steps.erase[t][:, None, :], axis=-1)
    return decayed + written[..., None] * steps.key[t][:, None, :], decayed, written


def _at(xp: Any, x: Any, t: Any) -> Any:
    """``x[t]`` as one index (1,)."""
    return xp.reshape(x[t], (1,))


def _put(xp: Any, total: Any, index: Any, value: Any, valid: Any) -> Any:
    """``total`` with ``value`` at one index, where it is valid; it may be changed itself."""
    index = xp.clip(index, 0, total.shape[0] - 1)
    value = xp.where(valid, value[None], take(xp, total, index, 0))
    if is_jax_array(total):
        return total.at[index].set(value)
    if hasattr(total, "index_copy_"):
        return total.index_copy_(0, astype(index, "int64"), value)
    total[index] = value
    return total


def run(xp: Any, steps: Steps, states: Any, kept: Kept | None = None) -> tuple[Any, Any, Any]:
    """The final states, the states on the way (None unless asked for), and the outputs (T, H, V).

    ``states`` may be changed itself.
    """
    rows = steps.rows

    def step(carry: Any, t: Any) -> tuple[Any, tuple[Any, ...]]:
        states, found = carry
        sequence, valid = _at(xp, rows.sequence, t), rows.valid[t]
        state = take(xp, states, sequence, 0)[0]
        if kept is not None:
            there = valid & (rows.position[t] % kept.every == 0)
            found = _put(xp, found, _at(xp, kept.slots, t), state, there)
        state, _, _ = _advance(steps, xp, state, t)
        out = xp.sum(state * steps.query[t][:, None, :], axis=-1)
        return (_put(xp, states, sequence, state, valid), found), (xp.where(valid, out, xp.zeros_like(out)),)

    start = states, xp.zeros_like(states[:1]) if kept is None else kept.states
    (states, found), (out,) = sweep(xp, steps.query.shape[0], step, start)
    return states, None if kept is None else found, out


def run_back(xp: Any, steps: Steps, first: Any, by_state: Any, do: Any) -> tuple[Any, tuple[Any, ...]]:
    """The gradient of the first states, and per token and head those of query, key, erase, write and decay.

    States are kept at the start of each of about ``sqrt(T)`` blocks of tokens and computed again inside. Without
    ``erase`` its gradient is of no use and left out.
    """
    count = steps.query.shape[0]
    size = math.isqrt(count - 1) + 1
    blocks = -(-count // size)
    inside = _replay(xp, steps, first)

    def keep(carry: Any, block: Any) -> tuple[Any, tuple[Any]]:
        def advance(state: Any, offset: Any) -> tuple[Any, tuple[()]]:
            return inside(state, block * size + offset)[0], ()

        return sweep(xp, size, advance, carry)[0], (carry,)

    _, (starts,) = sweep(xp, blocks, keep, xp.zeros_like(first[0]))

    def back(carry: Any, step: Any) -> tuple[Any, tuple[Any, ...]]:
        block = blocks - 1 - step

        def again(state: Any, offset: Any) -> tuple[Any, tuple[Any]]:
            after, before = inside(state, block * size + offset)
            return after, (before,)

        _, (before,) = sweep(xp, size, again, starts[block])

        def token(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
            offset = size - 1 - position
            return _token_back(xp, steps, do, carry, block * size + offset, before[offset])

        return sweep(xp, size, token, carry)

    by_state, rows = sweep(xp, blocks, back, by_state)
    return by_state, tuple(xp.flip(xp.reshape(x, (blocks * size, *x.shape[2:])), axis=0)[:count] for x in rows)


def _replay(xp: Any, steps: Steps, first: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """From the state that the token before left and a token: the state that it leaves, and the one that it found."""
    rows, count = steps.rows, steps.query.shape[0]

    def inside(state: Any, t: Any) -> tuple[Any, Any]:
        t = _clipped(xp, t, count)
        fresh = take(xp, first, _at(xp, rows.sequence, t), 0)[0]
        before = xp.where(rows.position[t] == 0, fresh, state)
        return _advance(steps, xp, before, t)[0], before

    return inside


def _clipped(xp: Any, t: Any, count: int) -> Any:
    return min(t, count - 1) if isinstance(t, int) else xp.minimum(t, count - 1)


def _state_back(xp: Any, steps: Steps, out: Any, grad: Any, t: Any) -> tuple[Any, Any, Any]:
    """The gradients of the state that token t leaves, of what it writes, and of the decayed state before it."""
    grad = grad + out * steps.query[t][:, None, :]
    d_write = xp.sum(grad * steps.key[t][:, None, :], axis=-1)  # (H, V)
    by_decayed = grad
    if steps.erase is not None:
        by_decayed = grad - d_write[..., None] * steps.erase[t][:, None, :]
    return grad, d_write, by_decayed


def _token_back(xp: Any, steps: Steps, do: Any, by_state: Any, t: Any, state: Any) -> tuple[Any, tuple[Any, ...]]:
    """One step of the recurrence backwards: the gradient of the state before, and those of the token's operands."""
    count = steps.query.shape[0]
    exists = t < count
    t = _clipped(xp, t, count)
    sequence, valid = _at(xp, steps.rows.sequence, t), steps.rows.valid[t] & exists
    after, decayed, written = _advance(steps, xp, state, t)
    out = do[t][..., None]
    grad, d_write, by_decayed = _state_back(xp, steps, out, take(xp, by_state, sequence, 0)[0], t)
    d_query = xp.sum(after * out, axis=1)
    d_key = xp.sum(grad * written[..., None], axis=1)
    d_decay = xp.sum(by_decayed * state, axis=1)
    if steps.decay.shape[-1] == 1:
        d_decay = xp.sum(d_decay, axis=-1, keepdims=True)
    by_state = _put(xp, by_state, sequence, by_decayed * steps.decay[t][:, None, :], valid)
    d_erase = -xp.sum(decayed * d_write[..., None], axis=1) if steps.erase is not None else d_key
    found = (d_query, d_key, d_erase, d_write, d_decay)
    return by_state, tuple(xp.where(valid, x, xp.zeros_like(x)) for x in found)


def run_states_back(xp: Any, steps: Steps, by_state: Any, do: Any) -> Any:
    """The gradient of the first states alone, which no state is needed for."""
    count = steps.query.shape[0]

    def token(carry: Any, position: Any) -> tuple[Any, tuple[()]]:
        t = count - 1 - position
        sequence, valid = _at(xp, steps.rows.sequence, t), steps.rows.valid[t]
        grad = take(xp, carry, sequence, 0)[0]
        by_decayed = _state_back(xp, steps, do[t][..., None], grad, t)[2]
        return _put(xp, carry, sequence, by_decayed * steps.decay[t][:, None, :], valid), ()

    return sweep(xp, count, token, by_state)[0]
