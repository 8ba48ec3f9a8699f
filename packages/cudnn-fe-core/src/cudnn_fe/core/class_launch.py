"""Launches of the class API: into the caller's buffers, after checks against the samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudnn_fe.core.call import call
from cudnn_fe.core.choose import choose
from cudnn_fe.core.compile import compiled
from cudnn_fe.core.device import cuda_device_count, device
from cudnn_fe.core.errors import AlignmentError, FrameworkError, OptionError, ShapeError
from cudnn_fe.core.frameworks import common_framework
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.streams import torch_stream
from cudnn_fe.core.tensor import TensorSpec, pointer_of, refuse_overlap, spec_of

if TYPE_CHECKING:
    from cudnn_fe.core.torch import TorchPlan

__all__ = ["Launch", "cuda_launch", "flat", "free_launch", "reference_launch", "repeated"]

Launch = Callable[..., None]


def _mismatch(tensor: Any, spec: TensorSpec) -> Exception:
    found = spec_of(tensor, spec.name)
    return ShapeError(
        spec.name,
        got=f"shape {found.shape}, strides {found.strides}, {found.dtype} on {found.device}",
        wanted=f"shape {spec.shape}, strides {spec.strides}, {spec.dtype} on {spec.device}, as the sample",
        remedy="pass tensors like the samples, or make another op object",
    )


def _check_likeness(tensors: tuple[Any, ...], specs: list[TensorSpec]) -> None:
    for tensor, spec in zip(tensors, specs, strict=True):
        if replace(spec_of(tensor, spec.name), alignment=spec.alignment) != spec:
            raise _mismatch(tensor, spec)


def _check_alignment(tensors: tuple[Any, ...], specs: list[TensorSpec]) -> None:
    """Compiled code may load as many bytes at once as the samples' alignment allowed."""
    for tensor, spec in zip(tensors, specs, strict=True):
        now = spec_of(tensor, spec.name)
        if now.alignment < spec.alignment:
            raise AlignmentError(
                spec.name,
                got=f"a pointer aligned to {now.alignment} bytes",
                wanted=f"{spec.alignment} bytes, as the sample's",
                remedy="make the op object with a sample of the same alignment",
            )


def _check_overlap(tensors: tuple[Any, ...], specs: list[TensorSpec], input_count: int) -> None:
    placed = [(spec, pointer_of(tensor)) for spec, tensor in zip(specs, tensors, strict=True)]
    refuse_overlap(placed[:input_count], placed[input_count:])


def _present(inputs: tuple[Any, ...], specs: list[TensorSpec], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors of a call, one for each spec; absent inputs and outputs are left out."""
    tensors = inputs + outputs
    if len(tensors) != len(specs):
        tensors = tuple([tensor for tensor in tensors if tensor is not None])
    if len(tensors) != len(specs):
        raise ShapeError(
            "execute",
            got=f"{len(tensors)} tensors",
            wanted=f"{len(specs)}, as many as there were samples: {', '.join(spec.name for spec in specs)}",
            remedy="pass the optional tensors that the samples had, and no others",
        )
    return tensors


def kernel_or_plan(op: Op, problem: Problem, wanted: tuple[bool, ...]) -> Launch | TorchPlan | None:
    """What serves a class on a GPU: the compiled function, or None where that is the reference.

    It is a plan where the kernel writes to more than the caller's buffers: scratch, results that nobody wants, results
    that are folded into what the buffers hold. A plan allocates these at each call.
    """
    choice = choose(op, problem)
    if choice.kernel is None:
        return None
    if choice.kernel.scratch or problem.accumulates or not all(wanted):
        from cudnn_fe.core.torch import TorchPlan  # torch is what it allocates with

        return TorchPlan(op, problem, None)
    return compiled(choice.kernel.module, choice.spec, device(problem.device).arch)


def cuda_launch(
    op: Op,
    problem: Problem,
    way: Launch | TorchPlan | None,
    specs: list[TensorSpec],
    wanted: tuple[bool, ...],
) -> Launch:
    """Launch on torch tensors, or on anything else with DLPack, after checks against the samples."""
    import torch  # TVM-FFI takes its stream from torch

    index = int(problem.device.partition(":")[2])
    input_count = len([spec for spec in problem.inputs if spec is not None])
    checked: set[tuple[Any, ...]] = set()

    def check(tensors: tuple[Any, ...]) -> None:
        _check_likeness(tensors, specs)
        _check_alignment(tensors, specs)
        _check_overlap(tensors, specs, input_count)

    def start(tensors: tuple[Any, ...], scalars: tuple[float, ...]) -> None:
        if way is None:
            _torch_reference(op, problem, tensors[:input_count], tensors[input_count:], scalars, wanted)
        elif callable(way):
            with torch.cuda.device(index):
                way(*tensors, *scalars)
        else:
            given = iter(tensors)
            operands = tuple([None if spec is None else next(given) for spec in problem.inputs])
            outs = tuple([next(given) if there else None for there in wanted])
            outputs = way.place(operands, outs)
            way.run(operands, outputs, scalars)
            way.fold(operands, outputs, outs)

    def launch(inputs: tuple[Any, ...], outputs: tuple[Any, ...], scalars: tuple[float, ...], stream: Any) -> None:
        tensors = _present(inputs, specs, outputs)
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):  # seen through DLPack, without a copy
            tensors = tuple([t if isinstance(t, torch.Tensor) else torch.from_dlpack(t) for t in tensors])
        key = tuple([(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors])
        if key not in checked:
            check(tensors)
            if len(checked) >= 1024:
                checked.clear()
            checked.add(key)
        if stream is None:
            start(tensors, scalars)
        else:
            with torch.cuda.stream(torch_stream(stream, index)):
                start(tensors, scalars)

    return launch


def flat(launch: Launch, input_count: int, output_count: int, arrange: Callable[..., Any] | None = None) -> Launch:
    """A launch that takes inputs, outputs, scalars and the stream one after the other, in the forms of ``execute``."""
    tensor_count = input_count + output_count

    def run(*arguments: Any, **more: Any) -> None:
        inputs, outputs = arguments[:input_count], arguments[input_count:tensor_count]
        scalars = arguments[tensor_count:-1]
        if arrange is not None:
            inputs, outputs, scalars = arrange(inputs, outputs, scalars)
        launch(inputs, outputs, scalars, arguments[-1], **more)

    return run


def repeated(launch: Launch, function: Launch, specs: Sequence[TensorSpec | None], scalars: int, index: int) -> Launch:
    """``launch``, with a short way for the tensors of the last call, where they are still as they were then.

    The short way is made as text: loops over the tensors would double what it costs. Type, device, shape and strides of
    all of them are compared in one step of torch's. Whatever it finds amiss, ``launch`` explains.
    """
    import torch

    from cudnn_fe.core.torch import current_device

    names = [f"t{i}" for i in range(len(specs))]
    there = [name for name, spec in zip(names, specs, strict=True) if spec is not None]
    scope: dict[str, Any] = {"function": function, "launch": launch, "current_device": current_device}
    scope["unchanged"] = lambda *_: False

    def remember(*tensors: Any) -> None:
        if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            for name, tensor in zip(there, tensors, strict=True):
                scope[f"last_{name}"] = weakref.ref(tensor)  # an id alone may pass to another tensor
            shapes, strides = [list(tensor.shape) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
            guards: Any = torch._C._dynamo.guards.TensorGuards  # its stub wants flat lists
            scope["unchanged"] = guards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check

    scope["remember"] = remember
    known = [f"last_{n}() is {n}" if spec is not None else f"{n} is None" for n, spec in zip(names, specs, strict=True)]
    if cuda_device_count() > 1:  # another device may be current
        known.append(f"current_device() == {index}")
    numbers = [f"x{i}" for i in range(scalars)]
    lines = [
        f"def run({', '.join((*names, *numbers, 'stream'))}):",
        "    try:",
        f"        if stream is None and unchanged({', '.join(there)}) and {' and '.join(known)}:",
        f"            function({', '.join((*there, *numbers))})",
        "            return",
        "    except Exception:",
        "        pass",
        f"    launch({', '.join((*names, *numbers, 'stream'))})",
        f"    remember({', '.join(there)})",
    ]
    exec("\n".join(lines), scope)
    run: Launch = scope["run"]
    return run


def free_launch(
    op: Op, problem: Problem, results: tuple[TensorSpec | None, ...], free: Mapping[str, tuple[int, ...]]
) -> Launch:
    """Launch on tensors that may differ from the samples in some extents: a plan per set of extents, found by them."""
    specs = [spec for spec in (*problem.inputs, *results) if spec is not None]
    if problem.device.startswith("cuda"):
        choice = choose(op, problem)
        if choice.kernel is not None:
            compiled(choice.kernel.module, choice.spec, device(problem.device).arch)
    fixed = [
        tuple((dim, n) for dim, n in enumerate(spec.shape) if dim not in free.get(spec.name, ())) for spec in specs
    ]
    options = problem.options
    seen: set[tuple[Any, ...]] = set()

    def launch(
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        scalars: tuple[float, ...],
        stream: Any,
        workspace: Any = None,
    ) -> None:
        outputs = tuple([None if spec is None else tensor for spec, tensor in zip(results, outputs, strict=True)])
        _require_same_presence(op.problem.operands, problem.inputs, inputs)
        _require_same_presence(op.results, results, outputs)
        tensors = tuple([tensor for tensor in inputs + outputs if tensor is not None])
        shapes = tuple([(tuple(tensor.shape), tensor.dtype) for tensor in tensors if hasattr(tensor, "dtype")])
        if shapes not in seen:
            for tensor, spec, extents in zip(tensors, specs, fixed, strict=True):
                found = spec_of(tensor, spec.name)
                shape = found.shape
                if len(shape) != spec.ndim or any(shape[dim] != n for dim, n in extents) or found.dtype != spec.dtype:
                    raise _mismatch(tensor, spec)
            seen.add(shapes)
        for tensor, spec in zip(tensors, specs, strict=True):
            if getattr(tensor, "requires_grad", False):
                raise _needs_gradient(spec.name)
        if spec_of(tensors[0], specs[0].name).device != specs[0].device:
            raise _mismatch(tensors[0], specs[0])
        if workspace is None:
            call(op, inputs, options, scalars, stream=stream, outs=outputs)
            return
        from cudnn_fe.core.torch import torch_op  # the workspace is a torch tensor, as its check found

        torch_op(op).eager(inputs, options, scalars, None, stream, outputs, workspace)

    return launch


def _require_same_presence(names: Sequence[str], specs: Sequence[TensorSpec | None], tensors: Sequence[Any]) -> None:
    """Raises OptionError where a tensor has no sample or a sample no tensor; a result without a sample is ignored."""
    for name, spec, tensor in zip(names, specs, tensors, strict=False):
        if (spec is None) != (tensor is None):
            raise OptionError(
                name if spec is None else spec.name,
                got="None" if tensor is None else "a tensor",
                wanted="None, as the sample was" if spec is None else "a tensor, as there was a sample",
                remedy="pass the tensors that had samples, and no others",
            )


def _needs_gradient(name: str) -> Exception:
    return OptionError(
        name,
        got="a tensor that requires a gradient",
        wanted="one that does not: the class API records no derivatives",
        remedy="detach it, or use the function",
    )


def _results(
    op: Op, problem: Problem, xp: Any, inputs: Any, scalars: tuple[float, ...], wanted: tuple[bool, ...]
) -> list[Any]:
    """What the definition gives for the buffers that are there; absent optional operands are None to it."""
    given = iter(inputs)
    operands = (None if spec is None else next(given) for spec in problem.inputs)
    results = op.run_reference(problem, xp, *operands, *scalars)
    return [result for result, there in zip(results, wanted, strict=True) if there]


def _folded(op: Op, xp: Any, outputs: Any, results: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
    """What goes into the buffers: the results, or their sum with or maximum over what is there."""
    kinds = [op.problem.accumulates.get(position) for position, there in enumerate(wanted) if there]
    fold = {"sum": lambda before, now: before + now, "maximum": xp.maximum, None: lambda before, now: now}
    return [fold[kind](before, now) for kind, before, now in zip(kinds, outputs, results, strict=True)]


def _torch_reference(
    op: Op, problem: Problem, inputs: Any, outputs: Any, scalars: tuple[float, ...], wanted: tuple[bool, ...]
) -> None:
    import array_api_compat.torch as xp
    import torch

    from cudnn_fe.core.torch_autograd import autocast_off

    with torch.no_grad(), autocast_off(problem.device.partition(":")[0]):
        results = _results(op, problem, xp, inputs, scalars, wanted)
        for output, result in zip(outputs, _folded(op, xp, outputs, results, wanted), strict=True):
            output.copy_(result)


def reference_launch(op: Op, problem: Problem, specs: list[TensorSpec], wanted: tuple[bool, ...]) -> Launch:
    """Run the reference into CPU buffers."""
    input_count = len([spec for spec in problem.inputs if spec is not None])

    def launch(inputs: tuple[Any, ...], outputs: tuple[Any, ...], scalars: tuple[float, ...], stream: Any) -> None:
        del stream  # a CPU has none
        tensors = _present(inputs, specs, outputs)
        inputs, outputs = tensors[:input_count], tensors[input_count:]
        framework = common_framework([spec.name for spec in specs], tensors)
        if framework == "jax":
            raise FrameworkError(
                specs[-1].name,
                got="a JAX array on the CPU",
                wanted="a buffer that may be written to",
                remedy=f"use {op.jax_name or op.name}, which returns new arrays",
            )
        _check_likeness(tensors, specs)
        _check_overlap(tensors, specs, input_count)
        if framework == "torch":
            _torch_reference(op, problem, inputs, outputs, scalars, wanted)
            return
        import array_api_compat.numpy as xp
        import numpy as np

        with np.errstate(all="ignore"):
            results = _results(op, problem, xp, inputs, scalars, wanted)
            for output, result in zip(outputs, _folded(op, xp, outputs, results, wanted), strict=True):
                np.copyto(output, result)

    return launch
