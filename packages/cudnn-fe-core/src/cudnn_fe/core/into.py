"""Calls whose results go into the caller's buffers, in place where the op allows it."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import Options, bind_operands, call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.frameworks import common_framework, torch_is_tracing
from cudnn_fe.core.op import Op
from cudnn_fe.core.tensor import spec_of

__all__ = ["call_into"]


def call_into(
    op: Op,
    operands: tuple[Any, ...],
    outs: tuple[Any, ...],
    options: Options,
    scalars: tuple[float, ...] = (),
    *,
    backend: str | None = None,
    stream: Any = None,
    workspace: Any = None,
) -> tuple[Any, ...]:
    """`call` with buffers for the results.

    Args:
        op: The op.
        operands: Arrays in the order of the problem's operands; None where an optional one is absent.
        outs: A buffer for each result, None for those to allocate.
        options: The problem's options as pairs.
        scalars: Numbers that are not part of the problem.
        backend: See `cudnn_fe.core.choose.choose`.
        stream: Launch stream for CUDA tensors; None is the framework's current one.
        workspace: A torch buffer for what the kernel wants besides, large enough; None allocates it.

    Returns:
        The results, which are the buffers where there are any.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, AlignmentError: A buffer that cannot hold its result.
        AliasError: A buffer overlaps an operand that it must not share memory with, or another buffer.
        OptionError: Buffers for JAX, whose arrays do not change.
    """
    framework = "torch" if torch_is_tracing() else common_framework(op.problem.operands, operands)
    if framework == "torch":
        from cudnn_fe.core.torch_into import call_torch_into  # torch is imported: the operands are its tensors

        return call_torch_into(op, operands, outs, options, scalars, backend, stream, workspace)
    if framework == "jax":
        raise OptionError(
            ", ".join(op.results), got="a buffer", wanted="None: JAX arrays do not change", remedy="use the results"
        )
    results = call(op, operands, options, scalars, backend=backend, stream=stream)
    import numpy as np

    problem = bind_operands(op, operands, dict(options))
    for position, (out, spec) in enumerate(zip(outs, problem.outputs, strict=True)):
        if out is not None:
            problem.check_output(position, spec_of(out, spec.name))
    for out, result in zip(outs, results, strict=True):
        if out is not None:
            np.copyto(out, result)  # after all arithmetic: a buffer may be an operand
    return tuple(result if out is None else out for out, result in zip(outs, results, strict=True))
