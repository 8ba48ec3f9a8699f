"""torch tensors through an op: plans, the short eager path, and the choice between it and the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch.autograd import forward_ad

from cudnn_fe.core.buffers import settled
from cudnn_fe.core.call import Options, Permuted, bind_operands
from cudnn_fe.core.choose import choose
from cudnn_fe.core.compile import compiled
from cudnn_fe.core.device import device as device_of
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.op import Op, Problem, resolve
from cudnn_fe.core.settings import settings
from cudnn_fe.core.streams import torch_stream
from cudnn_fe.core.tensor import TensorSpec, refuse_overlap, spec_of
from cudnn_fe.core.torch_autograd import autocast_off, differentiable, transformed, underivable

__all__ = ["TorchOp", "TorchPlan", "call_torch", "torch_op", "trace_torch"]

Tensors = tuple[torch.Tensor | None, ...]
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_PLANS = 4096  # a plan is a few hundred bytes; shapes beyond this many start the table anew

# torch has no public name for these; each costs a fraction of the public question that comes closest.
_autocast_anywhere: Callable[[], bool] = torch._C._is_any_autocast_enabled
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_functorch: Callable[[], bool] = torch._C._are_functorch_transforms_active
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class TorchPlan:
    """What a call with given shapes does: which backend, which outputs, which compiled function."""

    __slots__ = (
        "_checked",
        "_in_place",
        "backend",
        "device_index",
        "function",
        "op",
        "outputs",
        "problem",
        "scratch",
        "spec",
    )

    def __init__(self, op: Op, problem: Problem, backend: str | None) -> None:
        choice = choose(op, problem, backend)
        self.op, self.problem, self.backend, self.spec = op, problem, choice.backend, choice.spec
        self.device_index = int(problem.device.partition(":")[2]) if problem.device.startswith("cuda") else -1
        self.outputs = [_allocation(spec, problem.device) for spec in problem.outputs]
        self.scratch: list[tuple[Any, ...]] = []
        self._checked: set[tuple[Any, ...]] = set()
        places = {name: place for place, name in enumerate(problem.operands)}
        self._in_place = {position: places[name] for position, name in problem.in_place.items()}
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
        """The caller's buffers, checked, and fresh outputs where there is none or where it is added to."""
        parts: list[Any] = [0 if t is None else t.data_ptr() for t in operands]
        for position, out in enumerate(outs):
            place = self._in_place.get(position, -1)
            if out is None or (place >= 0 and out is operands[place]):
                parts.append(out is None)  # the plan and the addresses above say the rest
            else:
                parts += (out.data_ptr(), out.shape, out.stride(), out.dtype, out.get_device())
        key = tuple(parts)
        if key not in self._checked:
            self._check_outs(operands, [(position, out) for position, out in enumerate(outs) if out is not None])
            if len(self._checked) >= 1024:
                self._checked.clear()
            self._checked.add(key)
        direct = self._direct(outs)
        fresh = zip(direct, self.outputs, strict=True)
        return [torch.empty_strided(a[0], a[1], dtype=a[2], device=a[3]) if o is None else o for o, a in fresh]

    def _direct(self, outs: Tensors) -> Tensors:
        """The buffers that results are written to, not folded into."""
        folded = self.problem.accumulates
        return tuple([None if place in folded else out for place, out in enumerate(outs)]) if folded else outs

    def fold(self, operands: Tensors, outputs: list[torch.Tensor], outs: Tensors) -> tuple[torch.Tensor, ...]:
        """The results, those that accumulate added to the caller's buffers."""
        accumulates = self.problem.accumulates
        if not accumulates or not any(outs[place] is not None for place in accumulates):
            return tuple(outputs)
        import array_api_compat.torch as xp

        folded = [out if place in self.problem.accumulates else None for place, out in enumerate(outs)]
        with torch.no_grad():
            values = settled(self.problem, xp, operands, tuple(outputs), tuple(folded))
            return tuple([v if out is None else out.copy_(v) for v, out in zip(values, folded, strict=True)])

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
        outs: Tensors | None = None,
    ) -> None:
        """Write the results into ``outputs`` on the current stream; scratch is the caller's or fresh."""
        function = self.function
        if function is None:
            self._run_reference(operands, outputs, scalars, outs)
            return
        if self.op.problem.optional:
            operands = tuple([t for t in operands if t is not None])
        if self.scratch:
            outputs = [*outputs, *(self._fresh_scratch() if workspace is None else self._carve(workspace))]
        if self.device_index == current_device():
            function(*operands, *outputs, *scalars)
        else:
            with torch.cuda.device(self.device_index):
                function(*operands, *outputs, *scalars)

    def _fresh_scratch(self) -> list[torch.Tensor]:
        return [torch.empty_strided(s, t, dtype=d, device=p) for s, t, d, p in self.scratch]

    def _carve(self, workspace: torch.Tensor) -> list[torch.Tensor]:
        """The scratch buffers inside the caller's workspace, each at a multiple of 128 bytes."""
        raw, offset, parts = workspace.view(torch.uint8).view(-1), 0, []
        for shape, _, kind, _ in self.scratch:
            nbytes = prod(shape) * kind.itemsize
            parts.append(raw[offset : offset + nbytes].view(kind).view(shape))
            offset += -(-nbytes // 128) * 128
        return parts

    def _run_reference(
        self, operands: Tensors, outputs: list[torch.Tensor], scalars: tuple[float, ...], outs: Tensors | None
    ) -> None:
        import array_api_compat.torch as xp

        kind = self.problem.device.partition(":")[0]
        with torch.no_grad(), autocast_off(kind):
            results = self.op.run_reference(self.problem, xp, *operands, *scalars)
            if outs is not None:
                results = settled(self.problem, xp, operands, results, self._direct(outs))
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)


def _allocation(spec: TensorSpec, place: str) -> tuple[Any, ...]:
    return spec.shape, spec.strides, getattr(torch, spec.dtype.torch), torch.device(place)


class TorchOp:
    """An op on torch tensors."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.gradient: Gradient | None = resolve(op.gradient) if op.gradient else None
        self._plans: dict[tuple[Any, ...], TorchPlan] = {}

    def forget_plans(self) -> None:
        """Choose anew on the next call of every shape."""
        self._plans.clear()

    def plan(self, operands: Tensors, options: Options, backend: str | None) -> TorchPlan:
        """The plan for these operands, made on first use of their shapes, layouts and types."""
        parts: list[Any] = [options, backend, settings().backend]
        try:
            for t in operands:
                if t is None:
                    parts.append(None)
                else:
                    parts += (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15)
        except RuntimeError:  # no strides or no memory, as sparse tensors
            bind_operands(self.op, operands, dict(options))  # raises what names the operand
            raise
        key = tuple(parts)
        found = self._plans.get(key)
        if found is None:
            problem = bind_operands(self.op, operands, dict(options))
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            found = self._plans[key] = TorchPlan(self.op, problem, backend)
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
            return self._launched(plan, operands, scalars, outs, workspace)
        launch = torch_stream(stream, plan.device_index)
        with torch.cuda.stream(launch):
            results = self._launched(plan, operands, scalars, outs, workspace)
        for tensor in (*operands, *(outs or ()), workspace):
            if tensor is not None:
                tensor.record_stream(launch)
        return results

    @staticmethod
    def _launched(
        plan: TorchPlan, operands: Tensors, scalars: tuple[float, ...], outs: Tensors | None, workspace: Any
    ) -> tuple[torch.Tensor, ...]:
        if outs is None:
            outputs = plan.allocate()
            plan.run(operands, outputs, scalars, workspace)
            return tuple(outputs)
        outputs = plan.place(operands, outs)
        plan.run(operands, outputs, scalars, workspace, outs)
        return plan.fold(operands, outputs, outs)


@cache
def torch_op(op: Op) -> TorchOp:
    """The torch side of ``op``."""
    return TorchOp(op)


def call_torch(
    op: Op,
    operands: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    stream: Any,
    outs: Tensors | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run an op on torch tensors, now.

    Plain tensors take the short path. Whatever torch sees through its dispatcher goes there: subclasses, modes (fake
    tensors, FLOP counters), function transforms, forward-mode derivatives, views that negate lazily.
    """
    direct = not _dispatch_modes() and not _functorch() and forward_ad._current_level < 0
    wants_gradient = False
    for tensor in operands:
        if tensor is None:
            continue
        if type(tensor) is Permuted:
            return call_torch(op, _views(operands), options, scalars, backend, stream, outs)
        if type(tensor) not in _PLAIN or tensor.is_neg():
            direct = False
        wants_gradient = wants_gradient or tensor.requires_grad
    if op.autocast and _autocast_anywhere():
        operands = _autocast(op, operands)
    if not direct:
        from cudnn_fe.core.torch_library import call_library  # imports torch's compiler, which takes seconds

        _refuse_tangents(op.name, operands)
        if op.gradient and _functorch() and torch.is_grad_enabled():
            return transformed(torch_op(op), operands, options, scalars, backend)
        return call_library(op, operands, options, scalars, backend, outs)
    runner = torch_op(op)
    if outs is not None:
        return runner.eager(operands, options, scalars, backend, stream, outs)
    if wants_gradient and torch.is_grad_enabled():
        if runner.gradient is None:
            return underivable(op.name, runner.eager(operands, options, scalars, backend, stream), operands)
        return differentiable(runner, operands, options, scalars, backend, stream)
    return runner.eager(operands, options, scalars, backend, stream)


def trace_torch(
    op: Op,
    operands: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    outs: Tensors | None = None,
) -> tuple[torch.Tensor, ...]:
    """Put an op into the graph that torch.compile or torch.export is tracing."""
    from cudnn_fe.core.torch_library import call_library

    views = _views(operands)
    return call_library(op, _autocast(op, views) if op.autocast else views, options, scalars, backend, outs)


def _refuse_tangents(name: str, operands: Tensors) -> None:
    """Raises NotYetSupportedError under forward-mode differentiation, where a custom op's tangent would be zero."""
    if forward_ad._current_level < 0:
        return
    for tensor in operands:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotYetSupportedError(
                name,
                got="an operand with a forward-mode tangent",
                wanted="reverse-mode differentiation",
                remedy="use torch.func.vjp or backward(), or differentiate the reference",
            )


def _views(operands: tuple[Any, ...]) -> Tensors:
    return tuple([o.array.permute(o.dims) if isinstance(o, Permuted) else o for o in operands])


def _autocast(op: Op, operands: Tensors) -> Tensors:
    """float32 operands in autocast's type, where autocast is on for their device: what matmul itself does."""
    first = next(t for t in operands if t is not None)
    kind = first.device.type
    if not torch.is_autocast_enabled(kind):
        return operands
    wanted = torch.get_autocast_dtype(kind)
    kept = op.problem.kept
    return tuple(
        [
            t.to(wanted) if t is not None and t.dtype == torch.float32 and name not in kept else t
            for name, t in zip(op.problem.operands, operands, strict=True)
        ]
    )
