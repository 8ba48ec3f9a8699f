"""The definition of what a span of tokens does to a state and to its gradient, for any array namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import astype, index_range, narrow, wide
from cudnn_fe.attention.linear.recurrence import first_states, run, run_states_back
from cudnn_fe.attention.linear.reference import expanded, tokens_of
from cudnn_fe.core.dtypes import dtype

if TYPE_CHECKING:
    from cudnn_fe.attention.linear.summary_op import Summary, SummaryBackward

__all__ = ["backward", "forward"]


def _transition(problem: Any, xp: Any, steps: Any, like: Any) -> Any:
    """What the span multiplies a state by from the right (N, H, K, K): the states that the identity becomes."""
    size = problem.channels
    at = index_range(xp, size, like)
    identity = astype(at[:, None] == at, dtype(like.dtype).name)
    shape = (problem.sequences, problem.heads, size, size)
    states = xp.zeros_like(xp.broadcast_to(identity, shape)) + identity
    if problem.degenerate:
        return states
    nothing = xp.zeros_like(steps.key)
    return run(xp, replace(steps, query=nothing, write=nothing), states)[0]


def _results(problem: Any, xp: Any, states: Any, transition: Any) -> tuple[Any, Any]:
    kind = problem.outputs[0].dtype.name
    moved = xp.reshape(states, (-1,))[:0] if transition is None else transition
    return narrow(states, kind), narrow(moved, kind)


def forward(problem: Summary, xp: Any, *operands: Any) -> tuple[Any, Any]:
    """The final states, and the transitions as far as asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        operands: In the problem's order.
    """
    named = dict(zip(problem.operands, operands, strict=True))
    named["q"] = xp.zeros_like(xp.broadcast_to(named["k"][:: problem.updates][:, :1], problem.q.shape))
    tokens = tokens_of(problem, xp, named)
    state, steps = named["initial_state"], tokens.steps
    shape = (problem.sequences, problem.heads, problem.value_channels, problem.channels)
    states = first_states(xp, shape, tokens.k, None if state is None else wide(state))
    if not problem.degenerate:
        states = run(xp, steps, states)[0]
    moved = _transition(problem, xp, steps, wide(named["k"])) if problem.output_transition else None
    return _results(problem, xp, states, moved)


def backward(problem: SummaryBackward, xp: Any, *given: Any) -> tuple[Any, Any]:
    """The gradients of the first states, and the transitions, transposed, as far as asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        given: The operands in the problem's order, and the factor of the outputs.
    """
    *operands, scale = given
    named = dict(zip(problem.operands, operands, strict=True))
    named["v"] = xp.zeros_like(xp.broadcast_to(named["k"][:, :1, :1], problem.v.shape))
    if problem.w is not None:
        named["w"] = xp.zeros_like(named["do"])
    tokens = tokens_of(problem, xp, named)
    by_final, steps = named["d_final_state"], tokens.steps
    shape = (problem.sequences, problem.heads, problem.value_channels, problem.channels)
    states = first_states(xp, shape, tokens.k, None if by_final is None else wide(by_final))
    if not problem.degenerate:
        do = expanded(xp, scale * wide(named["do"]), problem.updates, last=True, fill=0.0)
        states = run_states_back(xp, steps, states, do)
    moved = None
    if problem.output_transition:
        moved = xp.matrix_transpose(_transition(problem, xp, steps, wide(named["k"])))
    return _results(problem, xp, states, moved)
