"""The definition of gated delta rules and of their gradients, for any array namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from array_api_compat import is_jax_array

from cudnn_fe.attention.arrays import astype, narrow, take, wide
from cudnn_fe.attention.linear.gates import Gates, guarded, normalised, normalised_gradient, to_heads
from cudnn_fe.attention.linear.recurrence import Kept, Steps, first_states, run, run_back
from cudnn_fe.attention.operands import statistics_dtype
from cudnn_fe.attention.sequences import Rows, rows_of

if TYPE_CHECKING:
    from cudnn_fe.attention.linear.op import DeltaRule, DeltaRuleBackward

__all__ = ["Tokens", "backward", "expanded", "forward", "tokens_of"]


@dataclass(frozen=True)
class Tokens:
    """Operands of every token and output head, in the type that sums are taken in, and how they were made.

    Attributes:
        q: Queries (T, H, K) with the heads that they came with.
        k: Keys likewise.
        v: Values likewise.
        w: Write gates (T, HO, V), or None.
        gates: Decay and strength, the latter (T, HO, 1) or (T, HO, K).
        strength: The strength that is used, which a guard may have changed.
        rows: The sequence of each token, and its place there; of every update where there are several a token.
        factors: What normalised queries and keys, None where they are as given.
        steps: What the recurrence reads.
    """

    q: Any
    k: Any
    v: Any
    w: Any
    gates: Gates
    strength: Any
    rows: Rows
    factors: tuple[Any, Any] | None
    steps: Steps


def expanded(xp: Any, x: Any, updates: int, *, last: bool, fill: float) -> Any:
    """A row per token as the first or the last of its updates' rows, ``fill`` in the others."""
    if updates == 1:
        return x
    others = xp.full_like(xp.concat([x[:, None]] * (updates - 1), axis=1), fill)
    rows = (others, x[:, None]) if last else (x[:, None], others)
    return xp.reshape(xp.concat(rows, axis=1), (x.shape[0] * updates, *x.shape[1:]))


def tokens_of(problem: Any, xp: Any, named: dict[str, Any]) -> Tokens:
    """What the recurrence reads, from the operands by name."""
    io, heads, updates = problem.k.dtype.name, problem.heads, problem.updates
    cu = named["cu_seqlens"]
    rows, whole = (rows_of(xp, cu * n, problem.g.shape[0] * n) for n in (updates, 1))
    kind = statistics_dtype(problem.k).name

    def summed(name: str) -> Any:
        return astype(wide(named[name]), kind)  # a gate may be of a wider type than the tokens

    q, g = (_of_sequences(xp, whole, summed(name)) for name in ("q", "g"))
    k, v, beta = (_of_sequences(xp, rows, summed(name)) for name in ("k", "v", "beta"))
    w = None if named.get("w") is None else _of_sequences(xp, rows, summed("w"))
    factors = None
    if problem.flags.use_qk_l2norm_in_kernel:
        (q, by_q), (k, by_k) = (normalised(xp, x, io) for x in (q, k))
        factors = by_q, by_k
    a, dt = named["a_log"], named["dt_bias"]
    a = None if a is None else summed("a_log")
    dt = None if dt is None else xp.reshape(summed("dt_bias"), (heads, -1))
    beta = beta if beta.ndim == 3 else beta[..., None]
    gates = Gates.of(problem.flags, xp, g if problem.channelwise else g[..., None], beta, a, dt)
    of_q, of_k, of_v = (to_heads(xp, x, heads) for x in (q, k, v))
    strength = gates.strength
    if problem.flags.beta_guard:
        strength = guarded(xp, strength, of_k, gates.decay, io)
    steps = Steps(
        expanded(xp, of_q, updates, last=True, fill=0.0),
        of_k,
        of_k * strength,
        of_v * (strength if w is None else w),
        expanded(xp, gates.decay, updates, last=False, fill=1.0),
        rows,
    )
    return Tokens(q, k, v, w, gates, strength, rows, factors, steps)


def _of_sequences(xp: Any, rows: Rows, x: Any) -> Any:
    """``x`` with zeros in rows that belong to no sequence, which may hold anything."""
    return xp.where(xp.reshape(rows.valid, (-1, *[1] * (x.ndim - 1))), x, xp.zeros_like(x))


def _state_shape(problem: Any) -> tuple[int, int, int, int]:
    return problem.sequences, problem.heads, problem.value_channels, problem.channels


def forward(problem: DeltaRule, xp: Any, *given: Any) -> tuple[Any, ...]:
    """The outputs (T, H, V), and the final states and the states on the way as far as asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        given: The operands in the problem's order, and the factor of the outputs.
    """
    *operands, scale = given
    named = dict(zip(problem.operands, operands, strict=True))
    tokens = tokens_of(problem, xp, named)
    state, indices = named["initial_state"], named.get("state_indices")
    first = None if state is None else wide(state) if indices is None else take(xp, wide(state), indices, 0)
    states = first_states(xp, _state_shape(problem), tokens.q, first)
    kept, every, updates = None, problem.checkpoint_every_n_tokens, problem.updates
    if every:
        lengths = (named["cu_seqlens"][1:] - named["cu_seqlens"][:-1]) * updates
        counts = (lengths + every - 1) // every
        before = xp.cumulative_sum(counts, axis=0) - counts
        slots = take(xp, before, tokens.rows.sequence, 0) + tokens.rows.position // every
        room = xp.zeros_like(xp.broadcast_to(states[:1], (problem.checkpoints, *states.shape[1:]))) + 0.0
        kept = Kept(every, slots, room)
    if problem.degenerate:
        out, found = xp.zeros_like(tokens.steps.write), None if kept is None else kept.states
    else:
        states, found, out = run(xp, tokens.steps, states, kept)
    out = out[updates - 1 :: updates]
    return _results(problem, xp, narrow(scale * out, problem.q.dtype.name), states, found, state, indices)


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


def backward(problem: DeltaRuleBackward, xp: Any, *given: Any) -> tuple[Any, ...]:
    """Gradients of all operands that there are, in their order.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        given: The operands in the problem's order, and the factor of the outputs.
    """
    *operands, scale = given
    named = dict(zip(problem.operands, operands, strict=True))
    tokens = tokens_of(problem, xp, named)
    shape = _state_shape(problem)
    first, by_state = (
        first_states(xp, shape, tokens.q, None if x is None else wide(x))
        for x in (named["initial_state"], named["d_final_state"])
    )
    steps = tokens.steps
    if problem.degenerate:
        grads = tuple(xp.zeros_like(x) for x in (steps.query, steps.key, steps.erase, steps.write, steps.decay))
    else:
        do = expanded(xp, scale * wide(named["do"]), problem.updates, last=True, fill=0.0)
        by_state, grads = run_back(xp, steps, first, by_state, do)
    return _to_operands(problem, xp, tokens, grads, by_state)


def _to_operands(problem: Any, xp: Any, tokens: Tokens, grads: tuple[Any, ...], by_state: Any) -> tuple[Any, ...]:
    """Gradients of the operands from those of every output head, in the operands' types."""
    d_query, d_key, d_erase, d_write, d_decay = grads
    updates, heads = problem.updates, problem.heads
    k, v = to_heads(xp, tokens.k, heads), to_heads(xp, tokens.v, heads)
    dq, dk = d_query[updates - 1 :: updates], d_key + d_erase * tokens.strength
    d_strength = d_erase * k  # a guard passes gradients through
    found: dict[str, Any] = {}
    if tokens.w is None:
        dv = d_write * tokens.strength
        d_strength = xp.sum(d_strength, axis=-1, keepdims=True) + xp.sum(d_write * v, axis=-1, keepdims=True)
    else:
        dv, found["dw"] = d_write * tokens.w, d_write * v
    dq, dk, dv = (_shared(xp, x, of.shape[1]) for x, of in ((dq, tokens.q), (dk, tokens.k), (dv, tokens.v)))
    if tokens.factors is not None:
        dq, dk = (
            normalised_gradient(xp, x, row, factor)
            for x, row, factor in zip((dq, dk), (tokens.q, tokens.k), tokens.factors, strict=True)
        )
    dg, dbeta, d_a_log, d_dt_bias = tokens.gates.gradients(problem.flags, xp, d_decay[::updates], d_strength)
    found |= {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "dbeta": dbeta, "d_initial_state": by_state}
    found |= {"d_a_log": d_a_log, "d_dt_bias": d_dt_bias}
    return tuple(narrow(xp.reshape(found[spec.name], spec.shape), spec.dtype.name) for spec in problem.outputs)


def _shared(xp: Any, x: Any, heads: int) -> Any:
    """The sum over output heads that share one of ``heads`` heads."""
    if x.shape[1] == heads:
        return x
    return xp.sum(xp.reshape(x, (x.shape[0], heads, x.shape[1] // heads, x.shape[2])), axis=2)
