"""How the public functions of linear attention call their ops."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.operands import deliver, softmax_factor
from cudnn_fe.core.call import call
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.op import Op
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["run_backward", "run_forward", "run_summary"]


def run_forward(
    op: Op, operands: tuple[Any, ...], scale: float | None, backend: str | None, **options: Any
) -> TupleDict:
    """``o``, ``final_state``, and ``checkpoints`` where asked for; states go into the caller's where he says so."""
    factor = softmax_factor(operands[0], scale, "scale")
    results = call(op, operands, tuple(options.items()), (factor,), backend=backend)
    names = ("o", "final_state", "checkpoints")[: len(results)]
    named = dict(zip(op.problem.operands, operands, strict=True))
    state, pool = named["initial_state"], named.get("state_indices") is not None
    written = options["overwrite_initial_state"] or (pool and options["output_final_state"])
    if written and framework_of(state) in ("torch", "numpy"):
        results = (results[0], deliver((results[1],), (state,), ("initial_state",))[0], *results[2:])
    return TupleDict(zip(names, results, strict=True))


def run_backward(
    op: Op, operands: tuple[Any, ...], scale: float | None, backend: str | None, **options: Any
) -> TupleDict:
    """The gradient of every operand that has one, None for those that there are not."""
    factor = softmax_factor(operands[0], scale, "scale")
    grads = iter(call(op, operands, tuple(options.items()), (factor,), backend=backend))
    named = dict(zip(op.problem.operands, operands, strict=True))
    there = (named[name.removeprefix("d_") if name.startswith("d_") else name[1:]] is not None for name in op.results)
    return TupleDict({name: next(grads) if given else None for name, given in zip(op.results, there, strict=True)})


def run_summary(
    op: Op, operands: tuple[Any, ...], backend: str | None, *, scale: float | None = None, **options: Any
) -> TupleDict:
    """The states, or their gradients, and ``transition``; those of gradients take the factor of the outputs."""
    scalars = (softmax_factor(operands[0], scale, "scale"),) if op.scalars else ()
    return TupleDict(zip(op.results, call(op, operands, tuple(options.items()), scalars, backend=backend), strict=True))
