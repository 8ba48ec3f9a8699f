"""What the portable kernels share that multiply each row by its expert's weights: tiles, operands, row and column
factors, and the rows past the end."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.expert_rows import RowTile, row_tile, slot_count
from cudnn_fe.core.cute.gemm_portable import BAND, PortableGemm
from cudnn_fe.core.cute.loaders_plain import TILE_ROWS
from cudnn_fe.core.cute.matrix_part import MatrixPart
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.store_plain import StagedTile, store_tile
from cudnn_fe.core.cute.tile_scheduler import DenseTiles, TileCoordinate
from cudnn_fe.core.cute.vectors import load_words, widen
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.kernel_spec import RowsSpec

__all__ = ["Factors", "PortableRows", "fake_rows", "fake_typed", "output_part", "store_zeros"]

_VECTOR_BYTES = 4 * TILE_ROWS


class PortableRows(PortableGemm):
    """The part of a kernel that ends with a tile of ``alpha * A * B^T`` in shared memory.

    Args:
        spec: What the kernel is compiled for.
    """

    def __init__(self, spec: RowsSpec) -> None:
        super().__init__(spec.gemm)
        self.spec = spec
        self.factors_at = self.shared_bytes
        self.shared_bytes += 2 * _VECTOR_BYTES

    def row_tiles(self, offsets: Any, extents: tuple[Any, Any]) -> DenseTiles:
        """The output's tiles, one for each block, of extents (M, N); they count slots instead of rows."""
        slots = slot_count(offsets, extents[0], TILE_ROWS)
        columns = (Int32(extents[1]) + (TILE_ROWS - 1)) // TILE_ROWS
        return DenseTiles(slots, columns, Int32(1), Int32(0), (1, 1, 1), BAND)

    @cute.jit
    def place(self, offsets: cute.Tensor, extents: cutlass.Constexpr) -> Any:
        """This block's `TileCoordinate`, and its `RowTile`."""
        tile = self.row_tiles(offsets, extents).coordinate(cute.arch.block_idx()[0], (Int32(0), Int32(0), Int32(0)))
        return tile, row_tile(offsets, Int32(extents[0]), tile.m, TILE_ROWS)

    @cute.jit
    def staged_rows(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        alpha: Float32,
        prob: Any,
        bias: Any,
        columns: Int32,
        tile: cutlass.Constexpr,
        rows: cutlass.Constexpr,
    ) -> Any:
        """Compute a tile of ``alpha * A * B^T`` of an expert of 0 to L - 1.

        Args:
            a: (M, K).
            b: (L, N, K), or addresses of (N, K) matrices.
            alpha: The expert's factor.
            prob: (M,) or None.
            bias: (N, L) or None.
            columns: N.
            tile: The `TileCoordinate`.
            rows: The `RowTile`.

        Returns:
            The `StagedTile`, readable by every thread, and its `Factors`.
        """
        shared = SmemAllocator().allocate(self.shared_bytes, 128).toint()
        column = tile.n * TILE_ROWS
        factors = Factors(shared + self.factors_at, prob is not None, bias is not None)
        factors.load(prob, bias, rows, column)
        operand = MatrixPart.of(a).from_row(rows.first, rows.rows)
        weights = self._weights(a, b, rows.expert, columns).from_row(column)
        return self.staged_parts(operand, weights, alpha, shared), factors

    def _weights(self, a: Any, b: Any, expert: Any, columns: Any) -> MatrixPart:
        """An expert's (N, K) matrix."""
        if self.spec.addresses is None:
            return MatrixPart.of(b, expert, 0)
        k_major = self.spec.gemm.b_major == "k"
        return MatrixPart.at(b, expert, a.element_type, (columns, a.shape[1]), k_major)


class Factors:
    """A tile's prob, one for each row, and bias, one for each column, as float32 in shared memory.

    Args:
        shared: Address of 1024 bytes.
        prob: Whether there is a prob.
        bias: Whether there is a bias.
    """

    def __init__(self, shared: Int32, prob: bool, bias: bool) -> None:
        self._prob = shared if prob else None
        self._bias = shared + _VECTOR_BYTES if bias else None

    def load(self, prob: Any, bias: Any, rows: RowTile, column: Any) -> None:
        """Fetch them; the block synchronises before it reads."""
        thread = Int32(cute.arch.thread_idx()[0])
        if prob is not None:
            part = MatrixPart.of_vector(prob).from_row(rows.first + thread)
            self._fetch(prob.element_type, part.address, Int32(thread < rows.rows), self._prob)
        if bias is not None:
            part = MatrixPart.of(bias).from_column(rows.expert).from_row(column + thread)
            self._fetch(bias.element_type, part.address, Int32(part.rows > 0), self._bias)

    def _fetch(self, kind: Any, address: Int64, inside: Int32, shared: Any) -> None:
        words = load_words(kind, address, 1, inside)
        thread = Int32(cute.arch.thread_idx()[0])
        store_shared(shared + thread * 4, widen(kind, words, 1), 4)

    def prob(self, line: Any) -> Any:
        """Of a row of the tile; 1 where there is none."""
        return Float32(1.0) if self._prob is None else load_shared(self._prob + line * 4, 1, Float32)[0]

    def bias(self, column: Any, count: int) -> list[Any]:
        """Of ``count`` (1 or a multiple of 4) columns of the tile; zeros where there is none."""
        if self._bias is None:
            return [Float32(0.0)] * count
        steps = range(0, count, 4)
        return [x for at in steps for x in load_shared(self._bias + (column + at) * 4, min(count, 4), Float32)]


def output_part(output: Any, rows: RowTile, tile: TileCoordinate, columns: int = TILE_ROWS) -> MatrixPart:
    """A result from a tile's first element on, of a tile with so many columns."""
    return MatrixPart.of(output).from_row(rows.first, rows.rows).from_column(tile.n * columns)


@cute.jit
def store_zeros(
    output: cute.Tensor, rows: cutlass.Constexpr, tile: cutlass.Constexpr, columns: cutlass.Constexpr = TILE_ROWS
) -> None:
    """Fill a tile of a result with zeros."""
    part = output_part(output, rows, tile, columns)
    store_tile(StagedTile("n", Int32(0)), output.element_type, part, columns, _zeros)


def _zeros(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
    del staged, line, inner
    return [Float32(0.0)] * count


def fake_rows(spec: RowsSpec) -> tuple[Any, ...]:
    """Stand-ins for A (M, K), the weights (L, N, K) or their addresses, offsets, and alpha (L,) where there is one."""
    gemm = spec.gemm
    weights = fake_tensor(gemm.b_dtype, -1, alignment=gemm.alignment)
    if spec.addresses is not None:
        weights = fake_tensor(spec.addresses, -1, rank=1, alignment=8)
    return (
        fake_tensor(gemm.a_dtype, -1, rank=2, alignment=gemm.alignment),
        weights,
        fake_tensor("int32", -1, rank=1, alignment=4),
        *((fake_tensor("float32", -1, rank=1, alignment=4),) if spec.alpha else ()),
    )


def fake_typed(name: str, rank: int) -> Any:
    """A stand-in for an operand or a result that is aligned to its elements."""
    return fake_tensor(name, -1, rank=rank, alignment=dtype(name).itemsize)
