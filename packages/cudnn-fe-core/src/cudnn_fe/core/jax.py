"""JAX arrays through an op: the kernel on CUDA, the reference on CPU, in one function that jit, grad and vmap take."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from cudnn_fe.core.errors import BackendError, FrameworkError, MissingPackageError, OptionError

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise MissingPackageError(
        "jax", got="no JAX in this environment", wanted="JAX", remedy='pip install "cudnn-fe-core[jax]"'
    ) from error

from cudnn_fe.core.call import Options, Permuted, bind_operands, physical_order, physical_shape
from cudnn_fe.core.choose import Choice, choose
from cudnn_fe.core.device import Device, compile_target
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.jax_refusal import refusal
from cudnn_fe.core.op import Op, Problem, resolve
from cudnn_fe.core.tensor import TRACED, TensorSpec
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["as_jax", "call_jax", "jax_arrays"]

jax.tree_util.register_pytree_with_keys(
    TupleDict,
    lambda results: ([(jax.tree_util.DictKey(key), value) for key, value in results.items()], tuple(results.keys())),
    lambda keys, values: TupleDict(zip(keys, values, strict=True)),
)

Arrays = tuple[Any, ...]


def call_jax(
    op: Op,
    operands: Arrays,
    options: Options,
    scalars: tuple[float, ...],
    backend: str | None,
    stream: Any = None,
    outs: Arrays | None = None,
) -> Arrays:
    """Run an op on JAX arrays or tracers; `Permuted` operands are seen in their permuted order.

    Everything but the arrays is static. Under ``jit`` this traces; outside, a jitted function per problem is kept.

    Raises:
        OptionError: A stream or a buffer is given.
    """
    if outs is not None and any(out is not None for out in outs):
        raise OptionError(
            ", ".join(op.results), got="a buffer", wanted="None: JAX arrays do not change", remedy="use the results"
        )
    if stream is not None:
        raise OptionError(
            "stream", got=repr(stream), wanted="None: XLA orders its own work", remedy="leave stream unset"
        )
    if op.gradient is not None and not any(isinstance(o, Permuted) for o in operands):
        return _differentiable(op, options, scalars, backend)(*operands)
    return _forward(op, operands, options, scalars, backend)


def as_jax(name: str, array: Any) -> jax.Array:
    """A JAX array from one, a tracer or a NumPy array.

    Raises:
        FrameworkError: Another framework's array, which would need a copy that nobody asked for.
    """
    if framework_of(array, operand=name) not in ("jax", "numpy"):
        raise FrameworkError(
            name, got=f"{type(array).__qualname__}", wanted="a JAX or NumPy array", remedy="use jax.dlpack.from_dlpack"
        )
    return jnp.asarray(array)


def jax_arrays(**arrays: Any) -> dict[str, Any]:
    """`as_jax` of arrays by the names of a function's parameters; those that are None are left out."""
    return {name: as_jax(name, array) for name, array in arrays.items() if array is not None}


def _forward(op: Op, operands: Arrays, options: Options, scalars: tuple[float, ...], backend: str | None) -> Arrays:
    problem = bind_operands(op, operands, dict(options))
    present = [
        (o, spec) for o, spec in zip(operands, problem.inputs, strict=True) if o is not None and spec is not None
    ]
    physical = tuple(_to_physical(o, spec) for o, spec in present)
    run = _jitted(op, problem.placed(TRACED), scalars, backend)  # jitted functions are not bound to a device
    return tuple(_to_logical(x, spec) for x, spec in zip(run(*physical), problem.outputs, strict=True))


def _to_physical(operand: Any, spec: TensorSpec) -> Any:
    """The array as it lies in memory, outermost dim first: a bitcast for XLA, since JAX arrays are row-major."""
    order = physical_order(spec)
    if isinstance(operand, Permuted):
        return jnp.transpose(operand.array, tuple(operand.dims[dim] for dim in order))
    return jnp.transpose(operand, order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(dim) for dim in range(len(order)))


def _to_logical(array: Any, spec: TensorSpec) -> Any:
    return jnp.transpose(array, _inverse(physical_order(spec)))


@lru_cache(maxsize=1024)
def _jitted(op: Op, problem: Problem, scalars: tuple[float, ...], backend: str | None) -> Callable[..., Arrays]:
    """A jitted function of physical arrays."""
    single = partial(_lowered, op, problem, scalars, backend)

    @jax.custom_batching.custom_vmap
    def run(*arrays: Any) -> Arrays:
        return single(*arrays)

    @run.def_vmap
    def batch(size: int, in_batched: Any, *arrays: Any) -> Any:
        stacked = tuple(
            x if batched else jnp.broadcast_to(x, (size, *x.shape))
            for x, batched in zip(arrays, in_batched, strict=True)
        )
        wide = problem.batched(size)
        if wide is None:
            results = jax.lax.map(lambda xs: run(*xs), stacked)
        else:
            # The batch becomes the outermost dim in memory: the place of the extent-1 dim that it replaces.
            flat = tuple(
                x.reshape(physical_shape(spec)) for x, spec in zip(stacked, _present(wide.inputs), strict=True)
            )
            outputs = _jitted(op, wide, scalars, backend)(*flat)
            results = tuple(
                y.reshape((size, *physical_shape(spec))) for y, spec in zip(outputs, problem.outputs, strict=True)
            )
        return results, (True,) * len(results)

    return jax.jit(run)


def _present(specs: tuple[TensorSpec | None, ...]) -> list[TensorSpec]:
    return [spec for spec in specs if spec is not None]


def _lowered(op: Op, problem: Problem, scalars: tuple[float, ...], backend: str | None, *arrays: Any) -> Arrays:
    reference = partial(_reference, op, problem, scalars)
    target = compile_target()
    try:
        choice = choose(op, problem, backend, on=target or Device("cpu"))
    except BackendError as error:
        if backend is not None:
            raise  # a backend that is named must serve
        return _by_platform(arrays, refusal(error, problem.outputs), reference)
    if choice.kernel is not None:
        return _by_platform(arrays, partial(_kernel, op, problem, choice, scalars), reference)
    if backend is not None or problem.degenerate or op.runs_reference_on_gpu:
        return reference(*arrays)
    no_target = BackendError(
        op.name,
        got="lowering for CUDA on a machine without a GPU",
        wanted="an architecture to compile for",
        remedy='set CUTE_DSL_ARCH, e.g. to sm_90a, or pass backend="reference" to run the definition itself',
    )
    return _by_platform(arrays, refusal(no_target, problem.outputs), reference)


def _by_platform(arrays: Arrays, cuda: Callable[..., Arrays], reference: Callable[..., Arrays]) -> Arrays:
    return tuple(jax.lax.platform_dependent(*arrays, cuda=cuda, cpu=reference, tpu=reference))


def _reference(op: Op, problem: Problem, scalars: tuple[float, ...], *arrays: Any) -> Arrays:
    given = iter(arrays)
    logical = [None if spec is None else _to_logical(next(given), spec) for spec in problem.inputs]
    results = op.run_reference(problem, jnp, *logical, *scalars)
    return tuple(jnp.transpose(y, physical_order(spec)) for y, spec in zip(results, problem.outputs, strict=True))


def _kernel(op: Op, problem: Problem, choice: Choice, scalars: tuple[float, ...], *arrays: Any) -> Arrays:
    """The kernel as an XLA custom call; compiled when XLA lowers for CUDA."""
    from cutlass.jax import TensorSpec as Layout  # takes seconds: only where there is a CUDA target
    from cutlass.jax import cutlass_call

    assert choice.kernel is not None
    module = import_module(choice.kernel.module)

    def layout(spec: TensorSpec) -> Any:
        return Layout(mode=_inverse(physical_order(spec)))

    scratch = choice.kernel.scratch(problem, choice.spec) if choice.kernel.scratch else ()
    written = (*problem.outputs, *scratch)
    call = cutlass_call(
        module.launcher(choice.spec),
        output_shape_dtype=[jax.ShapeDtypeStruct(physical_shape(spec), jnp.dtype(spec.dtype.name)) for spec in written],
        input_spec=[layout(spec) for spec in _present(problem.inputs)],
        output_spec=[layout(spec) for spec in written],
        compile_key=(choice.kernel.module, choice.spec),
        **dict(zip(op.scalars, scalars, strict=True)),
    )
    return tuple(call(*arrays))[: len(problem.outputs)]


@lru_cache(maxsize=1024)
def _differentiable(op: Op, options: Options, scalars: tuple[float, ...], backend: str | None) -> Callable[..., Arrays]:
    """The op as a function of arrays with its own derivative rule."""
    assert op.gradient is not None
    rule: Gradient = resolve(op.gradient)

    @jax.custom_vjp
    def run(*operands: Any) -> Arrays:
        return _forward(op, operands, options, scalars, backend)

    def forward(*operands: Any) -> tuple[Arrays, Arrays]:
        values = tuple(None if operand is None else operand.value for operand in operands)
        rule.check(operand.value.dtype for operand in operands if operand is not None and operand.perturbed)
        outputs = _forward(op, values, options, scalars, backend)
        return outputs, rule.save(values, outputs)

    def backward(saved: Arrays, cotangents: Arrays) -> Arrays:
        dense = tuple(None if _is_zero(ct) else ct for ct in cotangents)
        needed = (True,) * len(op.problem.operands)
        if all(ct is None for ct in dense):
            return (None,) * len(needed)  # zeros
        return rule.pull_back(saved, dense, scalars, needed, backend, options)

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
