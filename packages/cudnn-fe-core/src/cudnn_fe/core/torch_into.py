"""torch tensors through an op into the caller's buffers."""

from __future__ import annotations

from typing import Any

import torch

from cudnn_fe.core.call import Options
from cudnn_fe.core.frameworks import torch_is_tracing
from cudnn_fe.core.op import Op
from cudnn_fe.core.streams import torch_stream
from cudnn_fe.core.tensor import refuse_overlap, spec_of
from cudnn_fe.core.torch import TorchPlan, call_torch, torch_op, trace_torch

__all__ = ["call_torch_into"]

Tensors = tuple[torch.Tensor | None, ...]
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_CHECKED = 4096
_checked: set[tuple[Any, ...]] = set()


def call_torch_into(
    op: Op,
    operands: tuple[Any, ...],
    outs: Tensors,
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    stream: Any,
    workspace: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Run an op into buffers; what torch traces or sees through its dispatcher is computed, then copied."""
    if torch_is_tracing():
        return _copied(outs, trace_torch(op, operands, options, scalars, backend))
    if not all(t is None or type(t) in _PLAIN for t in (*operands, *outs)):
        return _copied(outs, call_torch(op, operands, options, scalars, backend, stream))
    plan = torch_op(op).plan(operands, options, backend)
    with torch.no_grad():
        if stream is None or plan.device_index < 0:
            outputs = _placed(plan, operands, outs)
            plan.run(operands, outputs, scalars, workspace)
            return tuple(outputs)
        launch = torch_stream(stream, plan.device_index)
        with torch.cuda.stream(launch):
            outputs = _placed(plan, operands, outs)
            plan.run(operands, outputs, scalars, workspace)
        for tensor in (*operands, *outs, workspace):
            if tensor is not None:
                tensor.record_stream(launch)
    return tuple(outputs)


def _copied(outs: Tensors, results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(r if out is None else out.copy_(r) for out, r in zip(outs, results, strict=True))


def _placed(plan: TorchPlan, operands: Tensors, outs: Tensors) -> list[torch.Tensor]:
    """The buffers, checked, and fresh outputs where there is none."""
    parts: list[Any] = [plan.problem]
    for t in (*operands, *outs):
        parts += (0,) if t is None else (t.data_ptr(), t.shape, t.stride(), t.dtype, t.device)
    key = tuple(parts)
    if key not in _checked:
        _check(plan, operands, outs)
        if len(_checked) >= _MOST_CHECKED:
            _checked.clear()
        _checked.add(key)
    fresh = zip(outs, plan.outputs, strict=True)
    return [torch.empty_strided(a[0], a[1], dtype=a[2], device=a[3]) if o is None else o for o, a in fresh]


def _check(plan: TorchPlan, operands: Tensors, outs: Tensors) -> None:
    problem = plan.problem
    inputs = {
        name: (spec, t.data_ptr())
        for name, spec, t in zip(problem.operands, problem.inputs, operands, strict=True)
        if spec is not None and t is not None
    }
    written = []
    for position, out in enumerate(outs):
        if out is None:
            continue
        spec = spec_of(out, problem.outputs[position].name)
        problem.check_output(position, spec)
        shared = inputs.get(problem.in_place.get(position, ""))
        if shared is not None and shared[1] == out.data_ptr() and shared[0].strides == spec.strides:
            refuse_overlap([row for row in inputs.values() if row is not shared], [(spec, out.data_ptr())])
        else:
            written.append((spec, out.data_ptr()))
    refuse_overlap(list(inputs.values()), written)
