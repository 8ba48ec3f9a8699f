"""The derivative of the causal convolution on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_backward_channels import ChannelsBackward
from cudnn_fe.conv.causal_conv1d.portable_backward_time import TimeBackward
from cudnn_fe.conv.causal_conv1d.portable_starts import Starts
from cudnn_fe.conv.causal_conv1d.portable_sums import InitialGradient, SumPartials
from cudnn_fe.conv.portable_parts import fake
from cudnn_fe.core.cute.arguments import named

__all__ = ["fake_arguments", "launcher", "operands"]


class _Backward:
    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.filter = ChannelsBackward(spec) if spec.major == "channels" else TimeBackward(spec)
        self.sums, self.initial, self.starts = SumPartials(spec), InitialGradient(spec), Starts()

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        spec = self.spec
        t = named([(name, present) for name, present, _, _ in operands(spec)], tensors)
        if cutlass.const_expr(spec.marked):
            self.starts.launch(stream, t.offsets, t.starts)
        self.filter.launch(stream, t)
        self.sums.launch(stream, t.partial, t.dweight, t.dbias)
        if cutlass.const_expr(spec.initial and spec.width > 1):
            self.initial.launch(stream, t)


def operands(spec: ConvSpec) -> list[tuple[str, bool, str, int]]:
    """Name, whether it comes along, element type and rank of each tensor in the launcher's order."""
    biased = spec.bias_dtype is not None
    return [
        ("x", True, spec.x_dtype, 3),
        ("weight", True, spec.weight_dtype, 2),
        ("bias", biased, spec.bias_dtype or "", 1),
        ("offsets", spec.packed, "int32", 1),
        ("initial", spec.initial, spec.x_dtype, 3),
        ("dy", True, spec.x_dtype, 3),
        ("d_final", spec.final, spec.x_dtype, 3),
        ("dx", True, spec.x_dtype, 3),
        ("dweight", True, spec.weight_dtype, 2),
        ("dbias", biased, spec.bias_dtype or "", 1),
        ("d_initial", spec.initial, spec.x_dtype, 3),
        ("partial", True, "float64" if spec.x_dtype == "float64" else "float32", 3),
        ("starts", spec.marked, "int32", 1),
    ]


def launcher(spec: ConvSpec) -> Any:
    """The host function ``launch(stream, *operands, *results, partial sums[, starts])`` of the tensors that a spec has.

    Args:
        spec: What to compile for.
    """
    return _Backward(spec)


def fake_arguments(spec: ConvSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    return tuple(fake(kind, rank) for _, present, kind, rank in operands(spec) if present)
