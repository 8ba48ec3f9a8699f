"""The grouped weight gradient on Hopper: core's WGMMA kernel, one sum of a group's rows for each expert."""

from __future__ import annotations

from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.epilogue_sm90 import Output
from cudnn_fe.core.cute.gemm_layout import GroupTables, SumGroups
from cudnn_fe.core.cute.gemm_sm90 import GemmSm90
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmTile
from cudnn_fe.grouped.epilogues_sm90 import sum_epilogue
from cudnn_fe.grouped.kernel_spec import WgradSpec
from cudnn_fe.grouped.launch_sm90 import addresses, fake_vector

__all__ = ["fake_arguments", "launcher"]


def launcher(spec: WgradSpec) -> Any:
    """The jitted ``launch(stream, a, b, offsets, [two factors], [old or addresses], w)`` of this spec."""
    (kind,) = spec.gemm.out_dtypes  # of results at addresses too
    tile = spec.gemm.tile or GemmTile()
    columns = 64 if dtype(kind).bits == 16 and tile.n // tile.warpgroups_n % 64 == 0 else 32
    result = Output(kind, "n", columns)
    gemm = GemmSm90(spec.gemm, (result,), sum_epilogue(spec, result), columns, SumGroups(spec.addresses is not None))

    @cute.jit
    def launch(stream: CUstream, *tensors: cute.Tensor) -> None:
        a, b, offsets, *old, w = tensors
        factors = (old.pop(0), old.pop(0)) if cutlass.const_expr(spec.factors) else ()
        columns_first = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 0]))
        if cutlass.const_expr(spec.addresses is None):
            gemm(stream, a, columns_first, (w,), factors, GroupTables(offsets), tuple(old))
        else:
            # The results lie at addresses; w is a token, whose one value says that they are there.
            h, i = Int32(a.shape[0]), Int32(b.shape[1])
            origin = cute.recast_ptr(a.iterator, dtype=element_type(kind))
            matrix = cute.make_tensor(origin, cute.make_layout((h, i), stride=(Int64(i), 1)))
            places = addresses(old[0], offsets.shape[0])
            tables = GroupTables(offsets, (), places, origin.toint())
            gemm(stream, a, columns_first, (matrix,), factors, tables, (matrix,) if spec.adds else ())
            zero_token(stream, w)

    return launch


@cute.jit
def zero_token(stream: CUstream, token: cute.Tensor) -> None:
    """Launch a zero behind what the stream holds so far."""
    _zero_token(token).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)


@cute.kernel
def _zero_token(token: cute.Tensor) -> None:
    token[0] = Float32(0.0)


def fake_arguments(spec: WgradSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the tensors of a launch."""
    (kind,) = spec.gemm.out_dtypes
    more = [fake_tensor(kind, 2)] * (2 if spec.adds else 1)
    if spec.addresses is not None:
        more = [fake_tensor(spec.addresses, 0, rank=1, alignment=8), fake_vector("float32")]
    return (
        fake_tensor(spec.gemm.a_dtype, 0, rank=2),
        fake_tensor(spec.gemm.b_dtype, 1, rank=2),
        fake_vector("int32"),
        *[fake_vector("float32")] * (2 if spec.factors else 0),
        *more,
    )
