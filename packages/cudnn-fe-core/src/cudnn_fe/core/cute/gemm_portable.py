"""What the portable GEMM kernels of all ops share: plans from a spec, the block's work up to the staged tile."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.loaders_plain import TILE_ROWS, OperandPlan
from cudnn_fe.core.cute.mainloop_mma import ACCUMULATORS, MainLoop
from cudnn_fe.core.cute.matrix_part import MatrixPart
from cudnn_fe.core.cute.store_plain import StagedTile
from cudnn_fe.core.cute.tile_scheduler import DenseTiles
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmSpec

__all__ = ["BAND", "PortableGemm", "fake_operands", "fake_outputs"]

BAND = 8  # tiles of M that are walked together and share their tiles of B in L2


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

    def tiles(self, a: Any, b: Any) -> DenseTiles:
        """The output's tiles, one for each block; all blocks lie along the grid's x, which alone may pass 65535."""
        extents = (a.shape[0], b.shape[0], a.shape[1], a.shape[2])
        return DenseTiles.of(extents, (TILE_ROWS, TILE_ROWS, self.main_loop.a.depth), (1, 1, 1), BAND)

    def part(self, output: Any, tile: Any, columns: int = TILE_ROWS) -> MatrixPart:
        """An output of the dense GEMM from the tile's first element on, of a tile with so many columns."""
        return MatrixPart.of(output, tile.batch).from_row(tile.m * TILE_ROWS).from_column(tile.n * columns)

    @cute.jit
    def staged(self, a: cute.Tensor, b: cute.Tensor, alpha: Float32) -> Any:
        """Compute this block's tile of ``alpha * A * B^T``; K = 0 gives zeros.

        Returns:
            The `StagedTile`, readable by every thread, and its `TileCoordinate`.
        """
        tile = self.tiles(a, b).coordinate(cute.arch.block_idx()[0], (Int32(0), Int32(0), Int32(0)))
        parts = [
            MatrixPart.of(tensor, tile.batch).from_row(place * TILE_ROWS)
            for tensor, place in ((a, tile.m), (b, tile.n))
        ]
        return self.staged_parts(*parts, alpha, SmemAllocator().allocate(self.shared_bytes, 128).toint()), tile

    @cute.jit
    def staged_parts(self, a: cutlass.Constexpr, b: cutlass.Constexpr, alpha: Float32, shared: Int32) -> Any:
        """The `StagedTile` of the product of two `MatrixPart`s at a shared-memory address, readable by every thread."""
        sums = cute.make_rmem_tensor(ACCUMULATORS, Float32)
        self.main_loop.run(a, b, shared, sums)
        staged = StagedTile(self.out_major, shared)
        staged.write(sums, self.main_loop.scale, alpha)
        cute.arch.sync_threads()
        return staged


def fake_operands(spec: GemmSpec) -> tuple[Any, Any]:
    """Stand-ins for A and B, aligned as the spec says; no stride is fixed, since a dim of extent 1 may have any."""
    a, b = (fake_tensor(name, -1, alignment=spec.alignment) for name in (spec.a_dtype, spec.b_dtype))
    return a, b


def fake_outputs(spec: GemmSpec) -> tuple[Any, ...]:
    """Stand-ins for the outputs, aligned to their elements."""
    return tuple(fake_tensor(name, -1, alignment=dtype(name).itemsize) for name in spec.out_dtypes)
