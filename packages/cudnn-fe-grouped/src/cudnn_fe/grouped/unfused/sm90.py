"""The unfused grouped GEMM on Hopper: core's WGMMA kernel over groups of rows, scaled in registers."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUstream
from cutlass import cute

from cudnn_fe.core.cute.epilogue_sm90 import Output
from cudnn_fe.core.cute.gemm_sm90 import GemmSm90
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmTile
from cudnn_fe.grouped.epilogues_sm90 import plain_epilogue
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.launch_sm90 import fake_forward, forward_parts, row_groups, written

__all__ = ["fake_arguments", "launcher"]


def launcher(spec: RowsSpec) -> Any:
    """The jitted ``launch(stream, a, b, offsets, alpha, [prob], [bias], d, c)`` of this spec."""
    tile = spec.gemm.tile or GemmTile()
    narrow = all(dtype(kind).bits == 16 for kind in written(spec))
    columns = 64 if narrow and tile.n // tile.warpgroups_n % 64 == 0 else 32
    outputs = tuple(Output(kind, "n", columns) for kind in written(spec))
    gemm = GemmSm90(spec.gemm, outputs, plain_epilogue(spec), columns, row_groups(spec))

    @cute.jit
    def launch(stream: CUstream, *tensors: cute.Tensor) -> None:
        gemm(stream, *forward_parts(spec, tensors))

    return launch


def fake_arguments(spec: RowsSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the tensors of a launch."""
    return fake_forward(spec)
