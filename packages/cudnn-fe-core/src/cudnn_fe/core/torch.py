"""torch tensors through an op: a short eager path, autograd, and the torch.library op that torch.compile traces."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache
from math import prod
from typing import Any

import torch
from cudnn_fe.core.call import Options, bind_operands
from cudnn_fe.core.choose import choose
from cudnn_fe.core.compile import compiled
from cudnn_fe.core.device import device as device_of
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.op import Op, Problem, op_named, resolve
from cudnn_fe.core.settings import settings
from cudnn_fe.core.streams import torch_stream
from cudnn_fe.core.tensor import TensorSpec, refuse_overlap, spec_of

__all__ = ["TorchOp", "TorchPlan", "call_torch", "torch_op"]

Tensors = tuple[torch.Tensor | None, ...]
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_PLANS = 4096  # a plan is a few hundred bytes; shapes beyond this many start the table anew


class TorchPlan:
    """What a call with given shapes does: which backend, which outputs, which compiled function."""

    __slots__ = ("_checked", "backend", "device_index", "function", "op", "outputs", "problem", "scratch")

    def __init__(self, op: Op, problem: Problem, backend: str | None) -> None:
        choice = choose(op, problem, backend)
        self.op, self.problem, self.backend = op, problem, choice.backend
        self.device_index = int(problem.device.partition(":")[2]) if problem.device.startswith("cuda") else -1
        self.outputs = [_allocation(spec, problem.device) for spec in problem.outputs]
        self.scratch: list[tuple[Any, ...]] = []
        self._checked: set[tuple[Any, ...]] = set()
        self.function: Callable[..., None] | None = None
        if choice.kernel is not None:
            if choice.kernel.scratch is not None:
                specs = choice.kernel.scratch(problem, choice.spec)
                self.scratch = [_allocation(spec, problem.device) for spec in specs]
            # Code compiled for one chip runs on every chip of its capability, so devices share it.
            self.function = compiled(choice.kernel.module, choice.spec, device_of(problem.device).arch)

    def allocate(self) -> list[torch.Tensor]:
        """Fresh outputs, uninitialised."""
        return [torch.empty_strided(s, t, dtype=d, device=p) for s, t, d, p in self.outputs]

    def place(self, operands: Tensors, outs: Tensors) -> list[torch.Tensor]:
        """The caller's buffers, checked, and fresh outputs where there is none."""
        given = [(position, out) for position, out in enumerate(outs) if out is not None]
        key = tuple([(out.data_ptr(), out.shape, out.stride(), out.dtype, out.get_device()) for _, out in given])
        key += tuple([0 if t is None else t.data_ptr() for t in operands])
        if key not in self._checked:
            self._check_outs(operands, given)
            if len(self._checked) >= 1024:
                self._checked.clear()
            self._checked.add(key)
        fresh = zip(outs, self.outputs, strict=True)
        return [torch.empty_strided(a[0], a[1], dtype=a[2], device=a[3]) if o is None else o for o, a in fresh]

    def _check_outs(self, operands: Tensors, given: list[tuple[int, torch.Tensor]]) -> None:
        inputs = {
            name: (spec, t.data_ptr())
            for name, spec, t in zip(self.problem.operands, self.problem.inputs, operands, strict=True)
            if spec is not None and t is not None
        }
        written = []
        for position, out in given:
            spec = spec_of(out, self.problem.outputs[position].name)
            self.problem.check_output(position, spec)
            shared = inputs.get(self.problem.in_place.get(position, ""))
            if shared is not None and shared[1] == out.data_ptr() and shared[0].strides == spec.strides:
                others = [row for row in inputs.values() if row is not shared]
                refuse_overlap(others, [(spec, out.data_ptr())])
            else:
                written.append((spec, out.data_ptr()))
        refuse_overlap(list(inputs.values()), written)

    def run(
        self,
        operands: Tensors,
        outputs: list[torch.Tensor],
        scalars: tuple[float, ...],
        workspace: torch.Tensor | None = None,
    ) -> None:
        """Write the results into ``outputs`` on the current stream."""
        if self.function is None:
            self._run_reference(operands, outputs, scalars)
        elif self.device_index == torch.cuda.current_device():
            self._launch(self.function, operands, outputs, scalars, workspace)
        else:
            with torch.cuda.device(self.device_index):
                self._launch(self.function, operands, outputs, scalars, workspace)

    def _launch(
        self,
        function: Any,
        operands: Tensors,
        outputs: list[torch.Tensor],
        scalars: tuple[float, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        if self.scratch:
            if workspace is not None:
                scratch = self._carve(workspace)
            else:
                scratch = [torch.empty_strided(s, t, dtype=d, device=p) for s, t, d, p in self.scratch]
            function(*[t for t in operands if t is not None], *outputs, *scratch, *scalars)
        else:
            function(*[t for t in operands if t is not None], *outputs, *scalars)

    def _carve(self, workspace: torch.Tensor) -> list[torch.Tensor]:
        """The scratch buffers inside the caller's workspace, each at a multiple of 128 bytes."""
        raw, offset, parts = workspace.view(torch.uint8).view(-1), 0, []
        for shape, _, kind, _ in self.scratch:
            nbytes = prod(shape) * kind.itemsize
            parts.append(raw[offset : offset + nbytes].view(kind).view(shape))
            offset += -(-nbytes // 128) * 128
        return parts

    def _run_reference(self, operands: Tensors, outputs: list[torch.Tensor], scalars: tuple[float, ...]) -> None:
        import array_api_compat.torch as xp

        with torch.no_grad():
            for output, result in zip(
                outputs, self.op.run_reference(self.problem, xp, *operands, *scalars), strict=True
            ):
                output.copy_(result)


def _allocation(spec: TensorSpec, place: str) -> tuple[Any, ...]:
    return spec.shape, spec.strides, getattr(torch, spec.dtype.torch), torch.device(place)


class TorchOp:
    """An op on torch tensors."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.gradient: Gradient | None = resolve(op.gradient) if op.gradient else None
        self._plans: dict[tuple[Any, ...], TorchPlan] = {}

    def plan(self, operands: Tensors, options: Options, backend: str | None) -> TorchPlan:
        """The plan for these operands, made on first use of their shapes, layouts and types."""
        key: list[Any] = [options, backend, settings().backend]
        for t in operands:
            if t is None:
                key.append(None)
            else:
                key += (t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr() & 15)
        found = self._plans.get(tuple(key))
        if found is None:
            problem = bind_operands(self.op, operands, dict(options))
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            found = self._plans[tuple(key)] = TorchPlan(self.op, problem, backend)
        return found

    def eager(
        self,
        operands: Tensors,
        options: Options,
        scalars: tuple[float, ...],
        backend: str | None,
        stream: Any = None,
        outs: Tensors | None = None,
        workspace: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Run now, without recording derivatives."""
        plan = self.plan(operands, options, backend)
        if stream is None or plan.device_index < 0:
            outputs = plan.allocate() if outs is None else plan.place(operands, outs)
            plan.run(operands, outputs, scalars, workspace)
            return tuple(outputs)
        launch = torch_stream(stream, plan.device_index)
        with torch.cuda.stream(launch):
            outputs = plan.allocate() if outs is None else plan.place(operands, outs)
            plan.run(operands, outputs, scalars, workspace)
        for tensor in (*operands, *(outs or ()), workspace):
            if tensor is not None:
                tensor.record_stream(launch)
        return tuple(outputs)


@cache
def torch_op(op: Op) -> TorchOp:
    """The torch side of ``op``."""
    return TorchOp(op)


def call_torch(
    op: Op,
    operands: Tensors,
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    stream: Any,
    outs: Tensors | None = None,
    workspace: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run an op on torch tensors, whichever way torch is looking at them.

    Plain tensors take the short path; traced, fake and subclassed ones the dispatcher.
    """
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        operands = _autocast(operands)
    if torch.compiler.is_compiling():
        return _into(outs, _call_library(op.name, operands, options, scalars, backend))
    wants_gradient = False
    for tensor in operands:
        if tensor is not None:
            if type(tensor) not in _PLAIN:
                return _into(outs, _call_library(op.name, operands, options, scalars, backend))
            wants_gradient = wants_gradient or tensor.requires_grad
    runner = torch_op(op)
    if wants_gradient and runner.gradient is not None and outs is None and torch.is_grad_enabled():
        runner.gradient.check(tuple(t.dtype for t in operands if t is not None))
        return tuple(_Differentiable.apply(runner, options, scalars, backend, stream, *operands))  # type: ignore[no-untyped-call]
    return runner.eager(operands, options, scalars, backend, stream, outs, workspace)


def _into(outs: Tensors | None, results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    if outs is None:
        return results
    return tuple(r if out is None else out.copy_(r) for out, r in zip(outs, results, strict=True))


def _call_library(
    name: str, operands: Tensors, options: Options, scalars: tuple[float, ...], backend: str | None
) -> tuple[torch.Tensor, ...]:
    pairs = [f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in options]
    assert _registered(name)
    results = getattr(torch.ops.cudnn_fe, name)(*operands, list(scalars), pairs, backend or "")
    return tuple(results) if isinstance(results, tuple | list) else (results,)


@torch.compiler.assume_constant_result  # tracing must not walk through the registration
def _registered(name: str) -> bool:
    if not hasattr(torch.ops.cudnn_fe, name):
        _register(torch_op(op_named(name)))
    return True


def _autocast(operands: Tensors) -> Tensors:
    """float32 operands in autocast's type, where autocast is on for their device: what matmul itself does."""
    first = next(t for t in operands if t is not None)
    kind = first.device.type
    if not torch.is_autocast_enabled(kind):
        return operands
    wanted = torch.get_autocast_dtype(kind)
    return tuple(t.to(wanted) if t is not None and t.dtype == torch.float32 else t for t in operands)


class _Differentiable(torch.autograd.Function):
    """The eager autograd node of every op; the derivative rule is the op's own."""

    @staticmethod
    def forward(
        ctx: Any, runner: TorchOp, options: Options, scalars: Any, backend: Any, stream: Any, *operands: Any
    ) -> Any:
        outputs = runner.eager(operands, options, scalars, backend, stream)
        rule = runner.gradient
        assert rule is not None
        ctx.save_for_backward(*rule.save(operands, outputs))
        ctx.set_materialize_grads(False)
        ctx.call = rule, scalars, backend, stream, tuple(t.stride() for t in outputs)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Any) -> Any:
        rule, scalars, backend, stream, strides = ctx.call
        device = next(t.device for t in ctx.saved_tensors)
        on_stream = stream is not None and device.type == "cuda"
        with torch.cuda.stream(torch_stream(stream, device.index)) if on_stream else nullcontext():
            dense = tuple(map(_dense, cotangents, strides))
            grads = rule.backward(ctx.saved_tensors, dense, scalars, ctx.needs_input_grad[5:], backend)
        return (None,) * 5 + tuple(grads)


def _dense(cotangent: torch.Tensor | None, strides: tuple[int, ...]) -> torch.Tensor | None:
    """A gradient that kernels can read: autograd may hand over broadcast views (``sum().backward()``), which are
    written out in the layout of the output that they belong to."""
    if cotangent is None or any(s == 1 and n > 1 for s, n in zip(cotangent.stride(), cotangent.shape, strict=True)):
        return cotangent
    fresh = torch.empty_strided(cotangent.shape, strides, dtype=cotangent.dtype, device=cotangent.device)
    return fresh.copy_(cotangent)


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
    rule = runner.gradient
    if rule is not None:

        def keep(ctx: Any, inputs: Any, output: Any) -> None:
            outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
            rule.check(tuple(t.dtype for t in inputs[:count] if t is not None))
            ctx.save_for_backward(*rule.save(inputs[:count], outputs))
            ctx.set_materialize_grads(False)
            ctx.call = tuple(inputs[count]), inputs[count + 2] or None, tuple(t.stride() for t in outputs)

        def backward(ctx: Any, *cotangents: Any) -> Any:
            scalars, backend, strides = ctx.call
            if results == "Tensor[]":
                (cotangents,) = cotangents
            dense = tuple(map(_dense, cotangents, strides))
            grads = rule.backward(ctx.saved_tensors, dense, scalars, ctx.needs_input_grad[:count], backend)
            return (*grads, None, None, None)

        defined.register_autograd(backward, setup_context=keep)
