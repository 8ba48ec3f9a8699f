"""Results in the caller's buffers. Rows past the last group keep what they held."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cudnn_fe.core.errors import DeviceError, DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.streams import torch_stream
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.grouped.arrays import counting

__all__ = ["require_like", "write"]


def require_like(given: TensorSpec, wanted: TensorSpec) -> None:
    """Raises unless a buffer has the result's shape, strides, dtype and device."""
    pairs = (
        (ShapeError, given.shape, wanted.shape),
        (DTypeError, given.dtype, wanted.dtype),
        (StrideError, given.strides if given.size else None, wanted.strides if wanted.size else None),
        (DeviceError, given.device, wanted.device),
    )
    for kind, got, expected in pairs:
        if got != expected:
            raise kind(given.name, got=str(got), wanted=str(expected), remedy="allocate the documented result")


def write(name: str, out: Any, result: Any, offsets: Any = None, *, add: bool = False, stream: Any = None) -> Any:
    """Write ``result`` into the caller's ``out``, or add it there, and return ``out``.

    Args:
        name: The buffer's parameter.
        out: A torch tensor or NumPy array like the result.
        result: The rows.
        offsets: Ends of the groups; rows past the last keep what they held. None writes all.
        add: Whether to add.
        stream: Launch stream for CUDA tensors.
    """
    framework = framework_of(out, operand=name)
    if framework not in ("torch", "numpy"):
        raise OptionError(
            name, got=f"a {framework} array", wanted="a buffer that may be written to", remedy="use the results"
        )
    require_like(spec_of(out, name), spec_of(result, name))
    if framework == "numpy":
        import numpy as np

        end = len(out) if offsets is None else max(int(offsets[-1]), 0)
        np.copyto(out[:end], out[:end] + result[:end] if add else result[:end])
        return out
    with _on(stream, out):
        value = out + result if add else result
        if offsets is not None:
            import array_api_compat.torch as xp

            inside = counting(xp, out.shape[0], out) < offsets[-1]
            value = value.where(inside.reshape(-1, *(1,) * (out.ndim - 1)), out)
        out.copy_(value)
    return out


def _on(stream: Any, tensor: Any) -> AbstractContextManager[Any]:
    if stream is None or not tensor.is_cuda:
        return nullcontext()
    import torch  # tensor is its

    launch: AbstractContextManager[Any] = torch.cuda.stream(torch_stream(stream, tensor.get_device()))
    return launch
