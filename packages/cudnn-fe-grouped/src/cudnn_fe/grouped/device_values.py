"""A check of offsets and addresses for those who look for a fault: it reads device values, which a call never does."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import CudnnFeError, OptionError
from cudnn_fe.core.frameworks import torch_is_tracing
from cudnn_fe.core.settings import settings
from cudnn_fe.grouped.addresses import host_addresses

__all__ = ["check_device_values"]


class _CapturedError(CudnnFeError, RuntimeError):
    """A check that waits for the stream, while the stream is captured."""


def check_device_values(offsets: Any, m: int, *pointers: Any) -> None:
    """With the setting ``validate_device_values``, raises unless ends and addresses keep the contract.

    Args:
        offsets: (L,) ends.
        m: Rows of the buffer.
        *pointers: Arrays of addresses, or None.
    """
    if torch_is_tracing() or not settings().validate_device_values:
        return
    if getattr(offsets, "is_cuda", False):
        import torch  # offsets are its

        if torch.cuda.is_current_stream_capturing():
            raise _CapturedError(
                "padded_offsets",
                got="a call under graph capture",
                wanted="no check of device values there",
                remedy="unset CUDNN_FE_GROUPED_GEMM_VALIDATE_DEVICE_VALUES",
            )
    try:
        ends = offsets.tolist()
    except Exception:  # a tracer has no values, and its error's type differs between releases
        return
    if any(later < earlier for earlier, later in zip([0, *ends], ends, strict=False)) or ends[-1] > m:
        raise OptionError(
            "padded_offsets", got=str(ends), wanted=f"non-decreasing ends from 0 to {m}", remedy="recompute the routing"
        )
    for addresses in pointers:
        if addresses is not None:
            host_addresses(addresses)
