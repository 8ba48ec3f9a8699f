"""A call's way: recognise the framework, hand over to its adapter, get the same kind of arrays back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.choose import REFERENCE, choose
from cudnn_fe.core.errors import FrameworkError, OptionError
from cudnn_fe.core.frameworks import common_framework
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["Permuted", "bind_operands", "call", "physical_order"]

Options = tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True, eq=False)
class Permuted:
    """An array seen with its dims in another order, in every framework, without moving data.

    Attributes:
        array: The array.
        dims: Dim ``i`` of the view is dim ``dims[i]`` of the array.
    """

    array: Any
    dims: tuple[int, ...]


def physical_order(spec: TensorSpec) -> tuple[int, ...]:
    """Dims from the outermost to the innermost in memory; dims of extent 1 first."""
    return tuple(sorted(range(spec.ndim), key=lambda dim: (spec.shape[dim] != 1, -spec.strides[dim])))


def bind_operands(op: Op, operands: tuple[Any, ...], options: dict[str, Any]) -> Problem:
    """The problem of a call, from arrays or `Permuted` arrays."""
    specs = []
    for name, operand in zip(op.problem.operands, operands, strict=True):
        if operand is None:
            specs.append(None)
        elif isinstance(operand, Permuted):
            specs.append(spec_of(operand.array, name).permute(operand.dims))
        else:
            specs.append(spec_of(operand, name))
    return op.bind(*specs, **options)


def call(
    op: Op,
    operands: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...] = (),
    *,
    backend: str | None = None,
    stream: Any = None,
    outs: tuple[Any, ...] | None = None,
    workspace: Any = None,
) -> tuple[Any, ...]:
    """Run an op on arrays of any one framework.

    Args:
        op: The op.
        operands: Arrays in the order of the problem's operands; None where an optional one is absent.
        options: The problem's options as pairs, hashable.
        scalars: Floating-point arguments that are not part of the problem.
        backend: See `cudnn_fe.core.choose.choose`.
        stream: Launch stream for CUDA tensors; None is the framework's current one.
        outs: The caller's buffers for the results, None for each one to allocate; None for all.
        workspace: A torch buffer for what the kernel wants besides, large enough; None allocates it.

    Returns:
        The op's results, as arrays of the operands' framework.
    """
    arrays = tuple(o.array if isinstance(o, Permuted) else o for o in operands)
    framework = common_framework(tuple(zip(op.problem.operands, arrays, strict=True)))
    if framework == "torch":
        from cudnn_fe.core.torch import call_torch  # torch is imported: the operands are its tensors

        tensors = tuple(o.array.permute(o.dims) if isinstance(o, Permuted) else o for o in operands)
        return call_torch(op, tensors, options, scalars, backend, stream, outs, workspace)
    if framework == "jax":
        from cudnn_fe.core.jax import call_jax  # likewise

        if outs is not None and any(out is not None for out in outs):
            raise OptionError(
                ", ".join(op.results), got="a buffer", wanted="None: JAX arrays do not change", remedy="use the results"
            )
        if stream is not None:
            raise OptionError(
                "stream",
                got=repr(stream),
                wanted="None: XLA orders its own work",
                remedy="leave stream unset for JAX arrays",
            )
        return call_jax(op, operands, options, scalars, backend)
    if framework == "numpy":
        return _call_numpy(op, operands, options, scalars, backend, outs)
    raise FrameworkError(
        op.problem.operands[0],
        got=f"{type(arrays[0]).__qualname__}, known by DLPack alone",
        wanted="a framework that can allocate results",
        remedy="convert with torch.from_dlpack or numpy.from_dlpack, or use the class API, which takes your buffers",
    )


def _call_numpy(
    op: Op,
    operands: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    outs: tuple[Any, ...] | None,
) -> tuple[Any, ...]:
    import array_api_compat.numpy as xp
    import numpy as np

    problem = bind_operands(op, operands, dict(options))
    choice = choose(op, problem, backend)
    assert choice.backend == REFERENCE  # arrays on the CPU have no other
    arrays = tuple(o.array.transpose(o.dims) if isinstance(o, Permuted) else o for o in operands)
    with np.errstate(all="ignore"):
        results = op.run_reference(problem, xp, *arrays, *scalars)
    fresh = tuple(_numpy_layout(result, spec) for result, spec in zip(results, problem.outputs, strict=True))
    if outs is None:
        return fresh
    buffers = [
        None if out is None else spec_of(out, spec.name) for out, spec in zip(outs, problem.outputs, strict=True)
    ]
    for position, spec in enumerate(buffers):
        if spec is not None:
            problem.check_output(position, spec)
    for out, result in zip(outs, fresh, strict=True):
        if out is not None:
            np.copyto(out, result)  # after all arithmetic: a buffer may be an operand
    return tuple(result if out is None else out for out, result in zip(outs, fresh, strict=True))


def _numpy_layout(result: Any, spec: TensorSpec) -> Any:
    """``result`` with the memory layout that the contract promises."""
    import numpy as np

    order = physical_order(spec)
    inverse = tuple(order.index(dim) for dim in range(len(order)))
    return np.ascontiguousarray(result.transpose(order)).transpose(inverse)
