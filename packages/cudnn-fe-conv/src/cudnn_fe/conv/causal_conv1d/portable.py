"""The causal convolution on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_channels import ChannelsForward
from cudnn_fe.conv.causal_conv1d.portable_starts import Starts
from cudnn_fe.conv.causal_conv1d.portable_states import FinalStates
from cudnn_fe.conv.causal_conv1d.portable_time import TimeForward
from cudnn_fe.conv.portable_parts import fake
from cudnn_fe.core.cute.arguments import named

__all__ = ["fake_arguments", "launcher", "operands"]


class _Forward:
    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.filter = ChannelsForward(spec) if spec.major == "channels" else TimeForward(spec)
        self.states, self.starts = FinalStates(spec), Starts()

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        spec = self.spec
        t = named([(name, present) for name, present, _, _ in operands(spec)], tensors)
        if cutlass.const_expr(spec.marked):
            self.starts.launch(stream, t.offsets, t.starts)
        self.filter.launch(stream, t)
        if cutlass.const_expr(spec.final and spec.width > 1):
            self.states.launch(stream, t.x, t.offsets, t.initial, t.final)


def operands(spec: ConvSpec) -> list[tuple[str, bool, str, int]]:
    """Name, whether it comes along, element type and rank of each tensor in the launcher's order."""
    return [
        ("x", True, spec.x_dtype, 3),
        ("weight", True, spec.weight_dtype, 2),
        ("bias", spec.bias_dtype is not None, spec.bias_dtype or "", 1),
        ("offsets", spec.packed, "int32", 1),
        ("initial", spec.initial, spec.x_dtype, 3),
        ("y", True, spec.x_dtype, 3),
        ("final", spec.final, spec.x_dtype, 3),
        ("starts", spec.marked, "int32", 1),
    ]


def launcher(spec: ConvSpec) -> Any:
    """The host function ``launch(stream, *operands, *results[, starts])`` of the tensors that a spec has.

    Args:
        spec: What to compile for.
    """
    return _Forward(spec)


def fake_arguments(spec: ConvSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    return tuple(fake(kind, rank) for _, present, kind, rank in operands(spec) if present)
