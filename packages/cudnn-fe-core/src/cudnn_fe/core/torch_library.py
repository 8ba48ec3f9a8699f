"""Ops as ``torch.ops.cudnn_fe.<op>``: what torch.compile, export, modes, subclasses and function transforms see."""

from __future__ import annotations

import ast
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import register_flop_formula

from cudnn_fe.core.buffers import settled
from cudnn_fe.core.call import Options, bind_operands
from cudnn_fe.core.op import Op, op_named
from cudnn_fe.core.registry import families
from cudnn_fe.core.torch_autograd import apply_rule

if TYPE_CHECKING:
    from cudnn_fe.core.torch import TorchOp

__all__ = ["call_library"]

Tensors = tuple[torch.Tensor | None, ...]
_lock = RLock()


def call_library(
    op: Op,
    operands: Tensors,
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    outs: Tensors | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run or trace an op through torch's dispatcher, on the current stream."""
    pairs = [f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in options]
    assert _registered(op.name)
    arguments = (*operands, list(scalars), pairs, backend or "")
    if outs is None:
        return _as_tuple(getattr(torch.ops.cudnn_fe, op.name)(*arguments))
    if _updates(op, operands, outs):
        fresh = iter(_as_tuple(getattr(torch.ops.cudnn_fe, f"{op.name}_in_place")(*arguments)))
        return tuple([next(fresh) if out is None else out for out in outs])
    import array_api_compat.torch as xp

    results = _as_tuple(getattr(torch.ops.cudnn_fe, op.name)(*arguments))
    results = settled(bind_operands(op, operands, dict(options)), xp, operands, results, outs)
    return tuple([r if out is None else out.copy_(r) for out, r in zip(outs, results, strict=True)])


def _as_tuple(results: Any) -> tuple[torch.Tensor, ...]:
    if results is None:
        return ()
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _updates(op: Op, operands: Tensors, outs: Tensors) -> bool:
    """Whether the buffers are the very operands that the op may write to, and all of them."""
    if not op.problem.in_place:
        return False
    for position, out in enumerate(outs):
        name = op.problem.in_place.get(position)
        if out is not (None if name is None else operands[op.problem.operands.index(name)]):
            return False
    return True


# Tracing must not walk through the registration.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _registered(name: str) -> bool:
    """Register the op and its family.

    A graph that torch.compile takes from its disk cache may name ops that nothing in this process has called yet,
    such as those of the backward.
    """
    from cudnn_fe.core.torch import torch_op  # it imports this module

    with _lock:
        if not hasattr(torch.ops.cudnn_fe, name):
            op = op_named(name)
            siblings = [row for family in families() if family.package == op.package for row in family.ops]
            for row in {op, *siblings}:
                _register(torch_op(row))
    return True


@lru_cache(maxsize=1024)
def _decode_options(pairs: tuple[str, ...]) -> Options:
    decoded = []
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):  # a dtype prints as its bare name
            value = text
        decoded.append((name, value))
    return tuple(decoded)


def _register(runner: TorchOp) -> None:
    """Define ``torch.ops.cudnn_fe.<op>`` with its fake kernel and, where the op has one, its derivative."""
    op = runner.op
    operands = ", ".join(f"Tensor{'?' if name in op.problem.optional else ''} {name}" for name in op.problem.operands)
    several = ", ".join(["Tensor"] * op.problem.output_count)
    results = {0: "Tensor[]", 1: "Tensor"}.get(op.problem.output_count, f"({several})")
    count = len(op.problem.operands)

    def packed(outputs: tuple[Any, ...]) -> Any:
        return {"Tensor": outputs[0], "Tensor[]": list(outputs)}.get(results, outputs)

    def run(*arguments: Any) -> Any:
        numbers, pairs, backend = arguments[count:]
        scalars = tuple(int(x) if name in op.integers else x for name, x in zip(op.scalars, numbers, strict=True))
        return packed(runner.eager(arguments[:count], _decode_options(tuple(pairs)), scalars, backend or None))

    def fake(*arguments: Any) -> Any:
        _, pairs, _ = arguments[count:]
        problem = bind_operands(op, arguments[:count], dict(_decode_options(tuple(pairs))))
        first = next(t for t in arguments[:count] if t is not None)
        outputs = tuple(
            torch.empty_strided(s.shape, s.strides, dtype=getattr(torch, s.dtype.torch), device=first.device)
            for s in problem.outputs
        )
        return packed(outputs)

    schema = f"({operands}, float[] scalars, str[] options, str backend) -> {results}"
    defined = torch.library.custom_op(f"cudnn_fe::{op.name}", run, mutates_args=(), schema=schema)
    defined.register_fake(fake)

    def flops(*arguments: Any, out_val: Any = None, **_: Any) -> int:
        return bind_operands(op, arguments[:count], dict(_decode_options(tuple(arguments[count + 1])))).flops

    register_flop_formula(getattr(torch.ops.cudnn_fe, op.name), get_raw=True)(flops)
    if op.problem.in_place:
        _register_in_place(runner)
    rule = runner.gradient
    if rule is None:
        return

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
        rule.check(t.dtype for t, needed in zip(inputs, ctx.needs_input_grad[:count], strict=False) if needed)
        ctx.save_for_backward(*rule.save(inputs[:count], outputs))
        ctx.set_materialize_grads(False)
        options = _decode_options(tuple(inputs[count + 1]))
        ctx.call = options, tuple(inputs[count]), inputs[count + 2] or None, tuple(t.stride() for t in outputs)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        options, scalars, backend, strides = ctx.call
        # Beside a list of results, torch takes an empty list among the arguments for one of tensors.
        empty: list[Any] | None = None
        if results == "Tensor[]":
            (cotangents,), empty = cotangents, []
        needed = tuple(ctx.needs_input_grad[:count])
        grads = apply_rule(runner, ctx.saved_tensors, cotangents, scalars, needed, backend, strides, options)
        return (*grads, None if scalars else empty, None if options else empty, None)

    defined.register_autograd(backward, setup_context=keep)


def _register_in_place(runner: TorchOp) -> None:
    """Define ``torch.ops.cudnn_fe.<op>_in_place``, which writes to operands and returns the other results."""
    op, problem = runner.op, runner.op.problem
    written = tuple(sorted(problem.in_place.values()))
    count, fresh = len(problem.operands), problem.output_count - len(problem.in_place)

    def declared(name: str) -> str:
        return (
            f"Tensor{f'(a{written.index(name)}!)' if name in written else ''}{'?' if name in problem.optional else ''}"
        )

    def kept(outputs: Any) -> Any:
        left = tuple(output for position, output in enumerate(outputs) if position not in problem.in_place)
        return (None, left[0] if left else None)[fresh] if fresh < 2 else left

    def run(*arguments: Any) -> Any:
        scalars, pairs, backend = arguments[count:]
        given = dict(zip(problem.operands, arguments, strict=False))
        outs = tuple(given.get(problem.in_place.get(position, "")) for position in range(problem.output_count))
        options = _decode_options(tuple(pairs))
        return kept(runner.eager(arguments[:count], options, tuple(scalars), backend or None, None, outs))

    def fake(*arguments: Any) -> Any:
        bound = bind_operands(op, arguments[:count], dict(_decode_options(tuple(arguments[count + 1]))))
        first = next(t for t in arguments[:count] if t is not None)
        return kept(
            tuple(
                torch.empty_strided(s.shape, s.strides, dtype=getattr(torch, s.dtype.torch), device=first.device)
                for s in bound.outputs
            )
        )

    operands = ", ".join(f"{declared(name)} {name}" for name in problem.operands)
    results = {0: "()", 1: "Tensor"}.get(fresh, f"({', '.join(['Tensor'] * fresh)})")
    schema = f"({operands}, float[] scalars, str[] options, str backend) -> {results}"
    defined = torch.library.custom_op(f"cudnn_fe::{op.name}_in_place", run, mutates_args=written, schema=schema)
    defined.register_fake(fake)
