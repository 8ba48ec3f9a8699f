"""A call's way: recognise the framework, hand over to its adapter, get the same kind of arrays back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from typing import Any

from cudnn_fe.core.buffers import settled
from cudnn_fe.core.choose import REFERENCE, choose, unknown_backend
from cudnn_fe.core.errors import FrameworkError, OptionError
from cudnn_fe.core.frameworks import Framework, common_framework, torch_is_tracing
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["Permuted", "bind_operands", "call", "physical_order", "physical_shape"]

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


def physical_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Extents in the order of `physical_order`."""
    return tuple(spec.shape[dim] for dim in physical_order(spec))


def bind_operands(op: Op, operands: tuple[Any, ...], options: dict[str, Any]) -> Problem:
    """The problem of a call, from arrays or `Permuted` arrays."""
    specs: list[TensorSpec | None] = []
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
) -> tuple[Any, ...]:
    """Run an op on arrays of any one framework.

    Args:
        op: The op.
        operands: Arrays in the order of the problem's operands; None where an optional one is absent.
        options: The problem's options as pairs.
        scalars: Floating-point arguments that are not part of the problem.
        backend: See `cudnn_fe.core.choose.choose`.
        stream: Launch stream for CUDA tensors; None is the framework's current one.
        outs: The caller's buffers for the results, None for each one to allocate; None for all. Results that
            accumulate are added to what is there.

    Returns:
        The op's results, as arrays of the operands' framework.

    Raises:
        FrameworkError: Operands of several frameworks, or of none that can allocate results.
        UnknownBackendError: A backend that is no name.
        OptionError: A scalar that is not a number, an option that cannot be hashed, a stream or buffers for JAX.
    """
    if torch_is_tracing():
        from cudnn_fe.core.torch import trace_torch  # torch is imported: it traces

        return trace_torch(op, operands, options, scalars, backend, outs)
    for scalar in scalars:
        if type(scalar) is not float:
            scalars = _numbers(op, scalars)
            break
    arrays = operands
    for operand in operands:
        if type(operand) is Permuted:
            arrays = tuple(o.array if isinstance(o, Permuted) else o for o in operands)
            break
    framework = common_framework(op.problem.operands, arrays)
    adapter = _adapters.get(framework) or _load_adapter(framework)
    try:
        return adapter(op, operands, options, scalars, backend, stream, outs)
    except TypeError:
        if backend is not None and not isinstance(backend, str):
            raise unknown_backend(op, backend) from None
        frozen = _frozen(options)
        if frozen == options:
            raise
    return adapter(op, operands, frozen, scalars, backend, stream, outs)


_Adapter = Callable[..., tuple[Any, ...]]
_adapters: dict[Framework, _Adapter] = {}  # kept, since an import statement costs a microsecond whenever it runs


def _load_adapter(framework: Framework) -> _Adapter:
    """The framework's adapter, whose module imports the framework, which is imported: its arrays exist."""
    if framework == "torch":
        adapter = import_module("cudnn_fe.core.torch").call_torch
    elif framework == "jax":
        adapter = import_module("cudnn_fe.core.jax").call_jax
    else:
        adapter = _call_numpy if framework == "numpy" else _refuse_dlpack
    _adapters[framework] = adapter
    return adapter  # type: ignore[no-any-return]


def _numbers(op: Op, scalars: tuple[Any, ...]) -> tuple[float, ...]:
    """The scalars as Python floats.

    Arrays are refused, those of no dims too: reading one on the host would wait for its device.
    """
    for name, value in zip(op.scalars, scalars, strict=True):
        if not isinstance(value, Real):
            raise OptionError(
                name,
                got=f"{type(value).__module__}.{type(value).__qualname__}",
                wanted="a number that is known on the host, and static under jit",
                remedy=f"pass {name} as a Python float, or multiply by the array yourself",
            )
    return tuple(int(x) if name in op.integers else float(x) for name, x in zip(op.scalars, scalars, strict=True))


def _frozen(options: tuple[tuple[str, Any], ...]) -> Options:
    """Options with lists as tuples, hashable."""
    pairs = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in options)
    for name, value in pairs:
        try:
            hash(value)
        except TypeError:
            raise OptionError(
                name, got=repr(value), wanted="a hashable value", remedy="pass a documented value of this option"
            ) from None
    return pairs


def _refuse_dlpack(
    op: Op,
    operands: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    stream: Any,
    outs: tuple[Any, ...] | None = None,
) -> tuple[Any, ...]:
    del options, scalars, backend, stream, outs
    first = next(o.array if isinstance(o, Permuted) else o for o in operands if o is not None)
    raise FrameworkError(
        op.problem.operands[0],
        got=f"{type(first).__qualname__}, known by DLPack alone",
        wanted="a framework that can allocate results",
        remedy="convert with torch.from_dlpack or numpy.from_dlpack, or use the class API, which takes your buffers",
    )


def _call_numpy(
    op: Op,
    operands: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    stream: Any,
    outs: tuple[Any, ...] | None = None,
) -> tuple[Any, ...]:
    import array_api_compat.numpy as xp  # the operands are NumPy's
    import numpy as np

    del stream  # a CPU has none

    problem = bind_operands(op, operands, dict(options))
    choice = choose(op, problem, backend)
    assert choice.backend == REFERENCE  # arrays on the CPU have no other
    arrays = tuple(o.array.transpose(o.dims) if isinstance(o, Permuted) else o for o in operands)
    with np.errstate(all="ignore"):
        results = op.run_reference(problem, xp, *arrays, *scalars)
    if outs is not None:
        for position, (out, spec) in enumerate(zip(outs, problem.outputs, strict=True)):
            if out is not None:
                problem.check_output(position, spec_of(out, spec.name))
        results = settled(problem, xp, arrays, results, outs)
    fresh = tuple(_numpy_layout(result, spec) for result, spec in zip(results, problem.outputs, strict=True))
    if outs is None:
        return fresh
    for out, result in zip(outs, fresh, strict=True):
        if out is not None:
            np.copyto(out, result)  # after all arithmetic: a buffer may be an operand
    return tuple(result if out is None else out for out, result in zip(outs, fresh, strict=True))


def _numpy_layout(result: Any, spec: TensorSpec) -> Any:
    """``result`` with the memory layout that the contract promises."""
    import numpy as np

    order = physical_order(spec)
    inverse = tuple(order.index(dim) for dim in range(len(order)))
    return np.asarray(result.transpose(order), order="C").transpose(inverse)
