"""Which GPU kernels serve the op."""

from __future__ import annotations

from cudnn_fe.core.op import Kernel

__all__ = ["KERNELS"]

KERNELS: tuple[Kernel, ...] = ()
