"""A CuTe DSL function as a JAX call, with outputs that the kernel adds to, and the layouts of GEMM operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cudnn_fe.core.errors import MissingPackageError, OptionError
from cudnn_fe.core.tensor import TensorSpec as Description
from cudnn_fe.core.tensor import contiguous_strides

try:
    import jax
    import jax.numpy as jnp
    from cutlass.jax import TensorSpec, cutlass_call
except ImportError as error:
    raise MissingPackageError(
        "cudnn.jax",
        got=str(error),
        wanted="JAX and the CuTe DSL",
        remedy='pip install "cudnn-fe[jax]" nvidia-cutlass-dsl',
    ) from error

__all__ = ["TensorSpec", "call", "gemm_operand_spec", "neg_inf_init", "row_major_desc", "sf_atom_spec", "zeros_init"]

Init = Callable[[Any], Any]


def call(
    fn: Callable[..., None],
    *,
    output_shape_dtype: Any,
    input_spec: Any = None,
    output_spec: Any = None,
    initialized_outputs: Mapping[int, Init] | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
    allow_cuda_graph: bool = True,
    compile_options: str | None = None,
    use_static_tensors: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """A callable over JAX arrays that launches ``fn(stream, *inputs, *outputs, **kwargs)`` on XLA's stream.

    Args:
        fn: A ``@cute.jit`` function.
        output_shape_dtype: One descriptor, or a flat tuple or list of them; the result has the same form.
        input_spec: Layouts of the inputs.
        output_spec: Layouts of the outputs.
        initialized_outputs: For outputs that the kernel adds to: output position to a function from its descriptor
            to its initial array, which is donated to the call.
        input_output_aliases: Input position to output position that shares its memory; ``fn`` gets it as the input.
        allow_cuda_graph: Whether XLA may capture the call.
        compile_options: Options of the kernel's compiler.
        use_static_tensors: Whether shapes are compiled in.
        **kwargs: Compile-time constants of ``fn``.

    Returns:
        A function of arrays.

    Raises:
        OptionError: Positions out of range, nested descriptors, an initialised output that also aliases an input.
    """
    single = hasattr(output_shape_dtype, "shape")
    flat = isinstance(output_shape_dtype, tuple | list)
    outputs = (output_shape_dtype,) if single else tuple(output_shape_dtype) if flat else (None,)
    if not all(hasattr(row, "shape") and hasattr(row, "dtype") for row in outputs):
        raise OptionError(
            "output_shape_dtype",
            got="nested descriptors",
            wanted="one descriptor or a flat sequence",
            remedy="flatten it",
        )
    inits = dict(initialized_outputs or {})
    aliases = dict(input_output_aliases or {})
    for position in inits:
        if not 0 <= position < len(outputs):
            raise OptionError(
                "initialized_outputs", got=str(position), wanted=f"0..{len(outputs) - 1}", remedy="name an output"
            )
        if position in aliases.values():
            raise OptionError(
                "initialized_outputs",
                got=f"output {position}, which aliases an input",
                wanted="either an initial value or an alias",
                remedy="initialise that input instead",
            )
    for position in aliases.values():
        if not 0 <= position < len(outputs):
            raise OptionError(
                "input_output_aliases", got=str(position), wanted=f"0..{len(outputs) - 1}", remedy="name an output"
            )
    filled = sorted(inits)

    def run(*arrays: Any) -> Any:
        if not all(hasattr(array, "shape") and hasattr(array, "dtype") for array in arrays):
            raise OptionError("inputs", got="something else", wanted="arrays", remedy="pass flat array inputs")
        count = len(arrays)

        def launch(stream: Any, *tensors: Any, **constants: Any) -> None:
            # The DSL leaves out outputs that alias an input; an initial array is such an input, and is the output.
            initial = dict(zip(filled, tensors[count : count + len(filled)], strict=True))
            fresh = iter(tensors[count + len(filled) :])
            given = [place for place in range(len(outputs)) if place not in aliases.values()]
            results = [initial[place] if place in initial else next(fresh) for place in given]
            fn(stream, *tensors[:count], *results, **constants)

        specs = None
        if input_spec is not None:
            given = list(input_spec) if isinstance(input_spec, Sequence) else [input_spec]
            specs = [*given, *(_spec_of_output(output_spec, position) for position in filled)]
        launched = cutlass_call(
            _as_jit(launch) if filled else fn,
            output_shape_dtype=list(outputs),
            input_spec=specs,
            output_spec=output_spec,
            input_output_aliases={**aliases, **{count + i: position for i, position in enumerate(filled)}},
            allow_cuda_graph=allow_cuda_graph,
            compile_options=compile_options,
            use_static_tensors=use_static_tensors,
            **kwargs,
        )
        results = launched(*arrays, *(inits[position](outputs[position]) for position in filled))
        return results[0] if single else type(output_shape_dtype)(results)

    return run


def _spec_of_output(output_spec: Any, position: int) -> Any:
    if isinstance(output_spec, Sequence):
        return output_spec[position]
    return output_spec


def _as_jit(launch: Callable[..., None]) -> Callable[..., None]:
    import cutlass.cute as cute

    return cute.jit(launch)  # type: ignore[no-any-return]


def row_major_desc(shape: Sequence[int], dtype: Any, name: str = "tensor") -> Description:
    """Metadata of a C-contiguous array on the first CUDA device; works with tracers' shapes."""
    from cudnn_fe.core.dtypes import dtype as known

    extents = tuple(shape)
    return Description(extents, contiguous_strides(extents), known(dtype, operand=name), "cuda:0", 16, name)


def gemm_operand_spec() -> Any:
    """Layout of a row-major (rows, K, 1) array as a K-major operand."""
    return TensorSpec(layout=(1, 0, 2))


def sf_atom_spec() -> Any:
    """Shows physical scale factors (L, R', K', 32, 4, 4) to a kernel as the logical view (32, 4, R', 4, K', L)."""
    return TensorSpec(mode=(3, 4, 1, 5, 2, 0))


def zeros_init(descriptor: Any) -> Any:
    """Zeros, for outputs that a kernel adds to."""
    return jnp.zeros(descriptor.shape, descriptor.dtype)


def neg_inf_init(descriptor: Any) -> Any:
    """Minus infinity, for outputs that a kernel takes maxima into."""
    return jnp.full(descriptor.shape, -jnp.inf, descriptor.dtype)


_ = jax  # imported for its absence to be reported here
