"""The definition of gated delta rules and of their gradients, for any array namespace.

The state of a head is a matrix (V, K): for every token it decays, the value that it holds for the token's key is
corrected, and the query reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from array_api_compat import is_jax_array

from cudnn_fe.attention.arrays import astype, narrow, sweep, take, wide
from cudnn_fe.attention.linear.gates import Gates, normalised, normalised_gradient, to_heads
from cudnn_fe.attention.sequences import Rows, rows_of

if TYPE_CHECKING:
    from cudnn_fe.attention.linear.op import DeltaRule, DeltaRuleBackward

__all__ = ["backward", "forward"]


@dataclass(frozen=True)
class _Tokens:
    """Operands of every token and output head, in the type that sums are taken in.

    Attributes:
        q: Queries (T, H, K), and keys likewise.
        k: Keys.
        v: Values (T, H, V).
        gates: Decay and write strength.
        rows: The sequence of each token, and its place there.
        factors: What normalised queries and keys, None where they are as given.
    """

    q: Any
    k: Any
    v: Any
    gates: Gates
    rows: Rows
    factors: tuple[Any, Any] | None


def _tokens(problem: Any, xp: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, cu: Any, a: Any, dt: Any) -> _Tokens:
    io, heads = problem.q.dtype.name, problem.heads
    rows = rows_of(xp, cu, q.shape[0])
    q, k, v, g, beta = (_of_sequences(xp, rows, wide(x)) for x in (q, k, v, g, beta))
    factors = None
    if problem.flags.use_qk_l2norm_in_kernel:
        (q, by_q), (k, by_k) = (normalised(xp, x, io) for x in (q, k))
        factors = by_q, by_k
    a = None if a is None else wide(a)
    dt = None if dt is None else xp.reshape(wide(dt), (heads, -1))
    gates = Gates.of(problem.flags, xp, g if problem.channelwise else g[..., None], beta, a, dt)
    return _Tokens(q, k, v, gates, rows, factors)


def _of_sequences(xp: Any, rows: Rows, x: Any) -> Any:
    """``x`` with zeros in rows that belong to no sequence, which may hold anything."""
    return xp.where(xp.reshape(rows.valid, (-1, *[1] * (x.ndim - 1))), x, xp.zeros_like(x))


def _advance(tokens: _Tokens, xp: Any, state: Any, t: Any) -> tuple[Any, Any, Any]:
    """The state after token t, the decayed one that it corrected, and the error that it found."""
    k = tokens.k[t]
    decayed = state * tokens.gates.decay[t][:, None, :]
    error = tokens.v[t] - xp.sum(decayed * k[:, None, :], axis=-1)
    written = tokens.gates.strength[t][:, None, None] * error[..., None] * k[:, None, :]
    return decayed + written, decayed, error


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


def _by_head(xp: Any, tokens: _Tokens, heads: int) -> _Tokens:
    """Queries, keys and values repeated for every output head."""
    q, k, v = (to_heads(xp, x, heads) for x in (tokens.q, tokens.k, tokens.v))
    return _Tokens(q, k, v, tokens.gates, tokens.rows, tokens.factors)


def _initial(problem: Any, xp: Any, like: Any, state: Any, indices: Any = None) -> Any:
    """A fresh array of the sequences' first states (N, H, V, K)."""
    shape = (problem.sequences, problem.heads, problem.value_channels, problem.channels)
    if state is None:
        return xp.zeros_like(xp.broadcast_to(xp.sum(xp.zeros_like(like)), shape)) + 0.0
    return (wide(state) if indices is None else take(xp, wide(state), indices, 0)) + 0.0


def forward(
    problem: DeltaRule,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    initial_state: Any,
    a_log: Any,
    dt_bias: Any,
    state_indices: Any,
    scale: float,
) -> tuple[Any, ...]:
    """The outputs (T, H, V), and the final states and the states on the way as far as asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Packed queries (T, H, K).
        k: Packed keys.
        v: Packed values (T, HV, V).
        g: Gates (T, H) or (T, H, K).
        beta: Write strengths (T, H).
        cu_seqlens: First token of each sequence.
        initial_state: First states (N, H, V, K), or a pool of them, or None.
        a_log: Log of the gates' amplitude, or None.
        dt_bias: Bias of the gates, or None.
        state_indices: Where the sequences' states are in the pool, or None.
        scale: Factor of the outputs.
    """
    tokens = _by_head(xp, _tokens(problem, xp, q, k, v, g, beta, cu_seqlens, a_log, dt_bias), problem.heads)
    rows, every = tokens.rows, problem.checkpoint_every_n_tokens
    states = _initial(problem, xp, tokens.q, initial_state, state_indices)
    kept = xp.zeros_like(states[:1])
    if every:
        kept = xp.zeros_like(xp.broadcast_to(kept, (problem.checkpoints, *kept.shape[1:]))) + 0.0
        counts = (cu_seqlens[1:] - cu_seqlens[:-1] + every - 1) // every
        before = xp.cumulative_sum(counts, axis=0) - counts
        slots = take(xp, before, rows.sequence, 0) + rows.position // every

    def step(carry: Any, t: Any) -> tuple[Any, tuple[Any, ...]]:
        states, kept = carry
        sequence, valid = _at(xp, rows.sequence, t), rows.valid[t]
        state = take(xp, states, sequence, 0)[0]
        if every:
            kept = _put(xp, kept, _at(xp, slots, t), state, valid & (rows.position[t] % every == 0))
        state, _, _ = _advance(tokens, xp, state, t)
        out = xp.sum(state * tokens.q[t][:, None, :], axis=-1)
        return (_put(xp, states, sequence, state, valid), kept), (xp.where(valid, out, xp.zeros_like(out)),)

    io = problem.q.dtype.name
    if problem.degenerate:
        out = xp.zeros_like(tokens.v)
    else:
        (states, kept), (out,) = sweep(xp, q.shape[0], step, (states, kept))
    return _results(problem, xp, narrow(scale * out, io), states, kept, initial_state, state_indices)


def _results(
    problem: DeltaRule, xp: Any, out: Any, states: Any, kept: Any, initial: Any, indices: Any
) -> tuple[Any, ...]:
    found = {"o": out}
    specs = {spec.name: spec for spec in problem.outputs}
    kind = specs["final_state"].dtype.name
    if not problem.output_final_state:
        found["final_state"] = narrow(xp.reshape(states, (-1,))[:0], kind)
    elif indices is None:
        found["final_state"] = narrow(states, kind)
    else:
        pool = initial + xp.zeros_like(initial)
        written = narrow(states, kind)
        if is_jax_array(pool):
            pool = pool.at[indices].set(written)
        elif hasattr(pool, "index_copy_"):
            pool = pool.index_copy_(0, astype(indices, "int64"), written)
        else:
            pool[indices] = written
        found["final_state"] = pool
    if "checkpoints" in specs:
        found["checkpoints"] = narrow(kept, specs["checkpoints"].dtype.name)
    return tuple(found[name] for name in specs)


def backward(
    problem: DeltaRuleBackward,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    do: Any,
    d_final_state: Any,
    initial_state: Any,
    a_log: Any,
    dt_bias: Any,
    scale: float,
) -> tuple[Any, ...]:
    """Gradients of all operands that there are, in their order.

    States are kept at the start of each of about ``sqrt(T)`` blocks of tokens and computed again inside.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: As in `forward`, and so is all but do and d_final_state.
        k: Packed keys.
        v: Packed values.
        g: Gates.
        beta: Write strengths.
        cu_seqlens: First token of each sequence.
        do: Gradient of the outputs.
        d_final_state: Gradient of the final states, or None.
        initial_state: First states, or None.
        a_log: Log of the gates' amplitude, or None.
        dt_bias: Bias of the gates, or None.
        scale: Factor of the outputs.
    """
    given = _tokens(problem, xp, q, k, v, g, beta, cu_seqlens, a_log, dt_bias)
    tokens = _by_head(xp, given, problem.heads)
    first = _initial(problem, xp, tokens.q, initial_state)
    by_state = _initial(problem, xp, tokens.q, d_final_state)
    if problem.degenerate:
        by_token = tuple(xp.zeros_like(x) for x in (tokens.q, tokens.k, tokens.v, tokens.gates.decay))
        by_token = (*by_token, xp.zeros_like(tokens.gates.strength))
    else:
        by_state, by_token = _sweep_back(problem, xp, tokens, first, by_state, scale * wide(do))
    return _to_operands(problem, xp, given, by_token, by_state)


def _sweep_back(
    problem: Any, xp: Any, tokens: _Tokens, first: Any, by_state: Any, do: Any
) -> tuple[Any, tuple[Any, ...]]:
    """The gradient of the first states, and per token and output head those of q, k, v, decay and strength."""
    count = tokens.q.shape[0]
    size = math.isqrt(count - 1) + 1
    blocks = -(-count // size)
    inside = _replay(xp, tokens, first)

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
            return _token_back(xp, tokens, do, carry, block * size + offset, before[offset])

        return sweep(xp, size, token, carry)

    by_state, steps = sweep(xp, blocks, back, by_state)
    return by_state, tuple(xp.flip(xp.reshape(x, (blocks * size, *x.shape[2:])), axis=0)[:count] for x in steps)


def _replay(xp: Any, tokens: _Tokens, first: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """From the state that the token before left and a token: the state that it leaves, and the one that it found."""
    rows, count = tokens.rows, tokens.q.shape[0]

    def inside(state: Any, t: Any) -> tuple[Any, Any]:
        t = _clipped(xp, t, count)
        fresh = take(xp, first, _at(xp, rows.sequence, t), 0)[0]
        before = xp.where(rows.position[t] == 0, fresh, state)
        return _advance(tokens, xp, before, t)[0], before

    return inside


def _clipped(xp: Any, t: Any, count: int) -> Any:
    return min(t, count - 1) if isinstance(t, int) else xp.minimum(t, count - 1)


def _token_back(xp: Any, tokens: _Tokens, do: Any, by_state: Any, t: Any, state: Any) -> tuple[Any, tuple[Any, ...]]:
    """One step of the recurrence backwards: the gradient of the state before, and those of the token's operands."""
    count = tokens.q.shape[0]
    exists = t < count
    t = _clipped(xp, t, count)
    sequence, valid = _at(xp, tokens.rows.sequence, t), tokens.rows.valid[t] & exists
    q, k = tokens.q[t][:, None, :], tokens.k[t][:, None, :]
    decay, strength = tokens.gates.decay[t], tokens.gates.strength[t]
    after, decayed, error = _advance(tokens, xp, state, t)
    out = do[t][..., None]
    grad = take(xp, by_state, sequence, 0)[0] + out * q
    dq = xp.sum(after * out, axis=1)
    grad_k = xp.sum(grad * k, axis=-1)  # (H, V)
    d_strength = xp.sum(grad_k * error, axis=-1)
    dv = strength[:, None] * grad_k
    dk = strength[:, None] * xp.sum(grad * error[..., None], axis=1) - xp.sum(decayed * dv[..., None], axis=1)
    by_decayed = grad - dv[..., None] * k
    d_decay = xp.sum(by_decayed * state, axis=1)
    if decay.shape[-1] == 1:
        d_decay = xp.sum(d_decay, axis=-1, keepdims=True)
    by_state = _put(xp, by_state, sequence, by_decayed * decay[:, None, :], valid)
    found = (dq, dk, dv, d_decay, d_strength)
    return by_state, tuple(xp.where(valid, x, xp.zeros_like(x)) for x in found)


def _to_operands(problem: Any, xp: Any, given: _Tokens, by_token: tuple[Any, ...], by_state: Any) -> tuple[Any, ...]:
    """Gradients of the operands from those of every output head, in the operands' types."""
    dq, dk, dv, d_decay, d_strength = by_token
    dq, dk, dv = (_shared(xp, x, of.shape[1]) for x, of in ((dq, given.q), (dk, given.k), (dv, given.v)))
    if given.factors is not None:
        dq, dk = (
            normalised_gradient(xp, x, row, factor)
            for x, row, factor in zip((dq, dk), (given.q, given.k), given.factors, strict=True)
        )
    dg, dbeta, d_a_log, d_dt_bias = given.gates.gradients(problem.flags, xp, d_decay, d_strength)
    if not problem.channelwise:
        dg = dg[..., 0]
    found = {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "dbeta": dbeta, "d_initial_state": by_state}
    found |= {"d_a_log": d_a_log, "d_dt_bias": d_dt_bias}
    return tuple(narrow(xp.reshape(found[spec.name], spec.shape), spec.dtype.name) for spec in problem.outputs)


def _shared(xp: Any, x: Any, heads: int) -> Any:
    """The sum over output heads that share one of ``heads`` heads."""
    if x.shape[1] == heads:
        return x
    return xp.sum(xp.reshape(x, (x.shape[0], heads, x.shape[1] // heads, x.shape[2])), axis=2)
