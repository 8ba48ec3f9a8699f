"""The grouped GEMM with a gated activation on Hopper: core's WGMMA kernel, activated in registers."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUstream
from cutlass import Float32, cute

from cudnn_fe.core.cute.epilogue_sm90 import Output
from cudnn_fe.core.cute.gemm_sm90 import GemmSm90
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.grouped.epilogues_sm90 import gated_epilogue
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.launch_sm90 import fake_forward, forward_parts, row_groups, tensors_and_scalars, written

__all__ = ["fake_arguments", "launcher"]


def launcher(spec: RowsSpec) -> Any:
    """The jitted ``launch(stream, a, b, offsets, alpha, prob, [bias], d, c, linear_offset)`` of this spec."""
    d_dtype, *c_dtype = written(spec)
    outputs = (Output(d_dtype, "n", PAIR_BLOCK), *(Output(kind, "n", 2 * PAIR_BLOCK) for kind in c_dtype))
    gemm = GemmSm90(spec.gemm, outputs, gated_epilogue(spec), 2 * PAIR_BLOCK, row_groups(spec))

    @cute.jit
    def launch(stream: CUstream, *arguments: Any, **scalars: Any) -> None:
        tensors, (linear_offset,) = tensors_and_scalars(arguments, scalars, 1)
        gemm(stream, *forward_parts(spec, tensors, 2, linear_offset))

    return launch


def fake_arguments(spec: RowsSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the tensors of a launch, and ``linear_offset``."""
    return (*fake_forward(spec), Float32(0.0))
