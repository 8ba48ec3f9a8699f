"""Streams in every form a caller may hold one, as a torch stream on the operands' device."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import DeviceError, OptionError

__all__ = ["stream_handle", "torch_stream"]

_NULL, _LEGACY, _PER_THREAD = 0, 1, 2  # handles that CUDA reserves


def stream_handle(stream: Any) -> int:
    """The raw handle of an int, a torch stream, or a cuda-python ``CUstream``.

    Raises:
        OptionError: ``stream`` is none of these.
    """
    if isinstance(stream, int):
        return stream
    handle = getattr(stream, "cuda_stream", None)
    if handle is not None:
        return int(handle)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise OptionError(
            "stream",
            got=type(stream).__name__,
            wanted="None, an int handle, a torch.cuda.Stream or a CUstream",
            remedy="pass one of these, or None for torch's current stream",
        ) from None


def torch_stream(stream: Any, device_index: int) -> Any:
    """The ``torch.cuda.Stream`` on ``cuda:<device_index>`` that ``stream`` stands for.

    The null and the legacy stream are torch's default stream; wrapping them as external streams would give
    torch's allocator a second name for one stream.

    Raises:
        DeviceError: A torch stream of another device.
        OptionError: The per-thread default stream, which torch cannot express, or no stream at all.
    """
    import torch  # the operands are torch tensors

    if isinstance(stream, torch.cuda.Stream):
        if stream.device_index != device_index:
            raise DeviceError(
                "stream",
                got=f"a stream of cuda:{stream.device_index}",
                wanted=f"a stream of cuda:{device_index}, where the operands are",
                remedy="create the stream on the operands' device",
            )
        return stream
    handle = stream_handle(stream)
    if handle in (_NULL, _LEGACY):
        return torch.cuda.default_stream(device_index)
    if handle == _PER_THREAD:
        raise OptionError(
            "stream",
            got="the per-thread default stream (handle 2)",
            wanted="a stream with a handle of its own, or the default stream",
            remedy="create a stream, or pass None for torch's current stream",
        )
    return torch.cuda.ExternalStream(handle, device=torch.device("cuda", device_index))
