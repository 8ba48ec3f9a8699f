"""The grouped weight gradient on Hopper: core's WGMMA kernel, one sum of a group's rows for each expert."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUstream
from cutlass import cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.epilogue_sm90 import Output
from cudnn_fe.core.cute.gemm_layout import SumGroups
from cudnn_fe.core.cute.gemm_sm90 import GemmSm90
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmTile
from cudnn_fe.grouped.epilogues_sm90 import sum_epilogue
from cudnn_fe.grouped.kernel_spec import WgradSpec
from cudnn_fe.grouped.launch_sm90 import fake_vector

__all__ = ["fake_arguments", "launcher"]


def launcher(spec: WgradSpec) -> Any:
    """The jitted ``launch(stream, a, b, offsets, [old], w)`` of this spec."""
    (kind,) = spec.gemm.out_dtypes
    tile = spec.gemm.tile or GemmTile()
    columns = 64 if dtype(kind).bits == 16 and tile.n // tile.warpgroups_n % 64 == 0 else 32
    gemm = GemmSm90(spec.gemm, (Output(kind, "n", columns),), sum_epilogue(spec), columns, SumGroups())

    @cute.jit
    def launch(stream: CUstream, *tensors: cute.Tensor) -> None:
        a, b, offsets, *old, w = tensors
        gemm(stream, a, cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 0])), (w,), tuple(old), (offsets,))

    return launch


def fake_arguments(spec: WgradSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the tensors of a launch."""
    (kind,) = spec.gemm.out_dtypes
    return (
        fake_tensor(spec.gemm.a_dtype, 0, rank=2),
        fake_tensor(spec.gemm.b_dtype, 1, rank=2),
        fake_vector("int32"),
        *((fake_tensor(kind, 2),) if spec.adds else ()),
        fake_tensor(kind, 2),
    )
