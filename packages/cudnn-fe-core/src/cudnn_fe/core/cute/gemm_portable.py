"""What the portable GEMM kernels of all ops share: plans from a spec, the block's work up to the staged tile."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.cute.loaders_plain import OperandPlan
from cudnn_fe.core.cute.mainloop_mma import ACCUMULATORS, MainLoop, TileCoordinates, tile_coordinates
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.cute.store_plain import StagedTile
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmSpec
from cutlass import Float32, cute
from cutlass.memory import SmemAllocator

__all__ = ["PortableGemm", "fake_matrix", "fake_operands", "half_columns"]


class PortableGemm:
    """The part of a portable GEMM kernel that ends with the scaled sums in shared memory.

    Args:
        spec: What the kernel is compiled for.
    """

    def __init__(self, spec: GemmSpec) -> None:
        plans = [
            OperandPlan(dtype(name), major, spec.alignment)
            for name, major in ((spec.a_dtype, spec.a_major), (spec.b_dtype, spec.b_major))
        ]
        self.main_loop = MainLoop(*plans)
        self.out_major = spec.out_major
        self.shared_bytes = max(self.main_loop.shared_bytes, StagedTile.size(spec.out_major))

    @cute.jit
    def staged(self, a: cute.Tensor, b: cute.Tensor, alpha: Float32) -> Any:
        """Compute this block's tile of ``alpha * A * B^T``; K = 0 gives zeros.

        Returns:
            The `StagedTile`, readable by every thread, and its `TileCoordinates`.
        """
        tile = tile_coordinates(cute.arch.block_idx()[0], a.shape[0], b.shape[0])
        memory = SmemAllocator().allocate(self.shared_bytes, 128)
        shared = memory.toint()
        sums = cute.make_rmem_tensor(ACCUMULATORS, Float32)
        self.main_loop.run(a, b, tile, shared, sums)
        staged = StagedTile(self.out_major, shared)
        staged.write(sums, self.main_loop.scale, alpha)
        cute.arch.sync_threads()
        return staged, tile


def half_columns(tile: TileCoordinates) -> TileCoordinates:
    """The tile of an output with half as many columns."""
    return TileCoordinates(tile.row, tile.column // 2, tile.batch)


def fake_matrix(name: str, shape: tuple[Any, Any, Any], unit: int, alignment: int = 0) -> Any:
    """A fake (rows, columns, L) tensor with unit stride in dim ``unit`` and free 64-bit strides in the others.

    Args:
        name: Element type.
        shape: Symbolic extents.
        unit: 0 or 1.
        alignment: Bytes that divide the base address; an element's if 0.
    """
    stride = tuple(1 if dim == unit else cute.sym_int64() for dim in range(3))
    return cute.runtime.make_fake_tensor(
        element_type(name), shape, stride, assumed_align=alignment or dtype(name).itemsize
    )


def fake_operands(spec: GemmSpec) -> tuple[tuple[Any, Any], tuple[Any, Any, Any]]:
    """Fake A and B of a spec, and the symbols of M, N and L for the outputs."""
    m, n, k, batches = (cute.sym_int32() for _ in range(4))
    a = fake_matrix(spec.a_dtype, (m, k, batches), 1 if spec.a_major == "k" else 0, spec.alignment)
    b = fake_matrix(spec.b_dtype, (n, k, batches), 1 if spec.b_major == "k" else 0, spec.alignment)
    return (a, b), (m, n, batches)
