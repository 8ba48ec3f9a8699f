"""Which kernels serve the decoding step, and what they are compiled for."""

from __future__ import annotations

from cudnn_fe.core.op import Kernel

__all__ = ["KERNELS"]

KERNELS: tuple[Kernel, ...] = ()
