"""Accumulators to global memory through shared memory, so that any output layout gets coalesced, wide stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.loaders_plain import THREADS, TILE_ROWS
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.vectors import store_vector

__all__ = ["StagedTile", "same_elements", "store_tile"]

_Elements = Callable[["StagedTile", Any, Any, int], list[Any]]


@dataclass(frozen=True)
class StagedTile:
    """A 128 x 128 fp32 tile in shared memory, contiguous along the outputs' contiguous dim.

    Attributes:
        major: ``"n"`` or ``"m"``.
        shared: Its shared-memory address.
    """

    major: str
    shared: Any

    @staticmethod
    def size(major: str) -> int:
        """Bytes of shared memory."""
        return TILE_ROWS * StagedTile.pitch(major)

    @staticmethod
    def pitch(major: str) -> int:
        """Bytes from line to line; the padding spreads a warp's fragment writes over all banks."""
        return (TILE_ROWS + (8 if major == "n" else 4)) * 4

    def write(self, sums: Any, scale: float, alpha: Float32) -> None:
        """Write a thread's accumulators times ``scale`` times ``alpha``; the caller synchronises."""
        thread = cute.arch.thread_idx()[0]
        warp, group, pair = thread // 32, thread % 32 // 4, thread % 4
        for index in range(0, cute.size(sums), 2):
            fragment = index // 4
            row = (warp // 2) * 64 + group + (fragment // 8 * 16 + index % 4 // 2 * 8)
            column = (warp % 2) * 64 + pair * 2 + fragment % 8 * 8
            # Two factors: their product could overflow where the result does not.
            scaled = [sums[index + part] * Float32(scale) * alpha for part in range(2)]
            if self.major == "n":
                store_shared(self.shared + row * self.pitch("n") + column * 4, scaled, 8)
            else:
                for part in range(2):
                    target = self.shared + (column + part) * self.pitch("m") + row * 4
                    store_shared(target, scaled[part : part + 1], 4)

    def read(self, line: Any, inner: Any, count: int) -> list[Float32]:
        """``count`` (1, 4 or 8) values of a line: of a row if n-major, of a column if m-major."""
        address = self.shared + line * self.pitch(self.major) + inner * 4
        return [
            value for start in range(0, count, 4) for value in load_shared(address + start * 4, min(count, 4), Float32)
        ]


def same_elements(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
    """The tile itself as the elements to store."""
    return staged.read(line, inner, count)


@cute.jit
def store_tile(
    staged: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    part: cutlass.Constexpr,
    columns: cutlass.Constexpr = TILE_ROWS,
    elements: cutlass.Constexpr = same_elements,
    beside: cutlass.Constexpr = None,
) -> None:
    """Store what an epilogue makes of a staged tile, within the output's extents.

    Whether 16-byte stores are possible is decided at run time: outputs do not multiply compilations.

    Args:
        staged: The `StagedTile`.
        dtype: The output's element type.
        part: The `MatrixPart` of the output from the tile's first element on, any strides with the staged tile's
            contiguous dim.
        columns: Columns of the output's tile.
        elements: Gives ``count`` output elements from a line and a position in it.
        beside: A part of the same type, lines and extents that ``elements`` reads, as wide as the stores are, or None.
    """
    size = dtype.width // 8
    lines, line, stride, lines_left, inner_left = TILE_ROWS, columns, part.row_stride, part.rows, part.columns
    if cutlass.const_expr(staged.major == "m"):
        lines, line, stride, lines_left, inner_left = columns, TILE_ROWS, part.column_stride, part.columns, part.rows
    address = part.address
    misaligned = address | stride | (Int64(inner_left) * size)
    if cutlass.const_expr(beside is not None):
        misaligned |= beside.address | (beside.row_stride if staged.major == "n" else beside.column_stride)
    if (misaligned & 15) == 0:
        _store_lines(staged, dtype, address, stride, lines_left, inner_left, lines, line, 16 // size, elements)
    else:
        _store_lines(staged, dtype, address, stride, lines_left, inner_left, lines, line, 1, elements)


@cute.jit
def _store_lines(
    staged: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    address: Int64,
    stride: Int64,
    lines_left: Int32,
    inner_left: Int32,
    lines: cutlass.Constexpr,
    line: cutlass.Constexpr,
    count: cutlass.Constexpr,
    elements: cutlass.Constexpr,
) -> None:
    thread = cute.arch.thread_idx()[0]
    per_line = line // count
    for step in cutlass.range(lines * per_line // THREADS, unroll=4):
        item = thread + step * THREADS
        index, inner = item // per_line, (item % per_line) * count
        if index < lines_left and inner < inner_left:
            target = address + Int64(index) * stride + Int64(inner) * (dtype.width // 8)
            store_vector(dtype, target, elements(staged, index, inner, count))
