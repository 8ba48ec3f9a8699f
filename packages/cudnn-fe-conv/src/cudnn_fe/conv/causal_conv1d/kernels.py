"""Which kernels serve the causal convolution, and what they are compiled for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.operands import vector_length
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.tensor import TensorSpec

if TYPE_CHECKING:
    from cudnn_fe.conv.causal_conv1d.op import CausalConv1d, CausalConv1dBackward, Sequences

__all__ = ["BACKWARD_KERNELS", "FORWARD_KERNELS", "TARGETS"]

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")

FORWARD_KERNELS: tuple[Kernel, ...] = ()
BACKWARD_KERNELS: tuple[Kernel, ...] = ()
