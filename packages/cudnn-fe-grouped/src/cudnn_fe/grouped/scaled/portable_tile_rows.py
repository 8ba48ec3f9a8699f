"""The rows of a warp's tile: whose they are, and what belongs to each.

Lane i of a warp finds out about row i of its 32; the lanes that work on a row ask that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.amax import fold_largest
from cudnn_fe.core.cute.block_quantize import reduce_scatter
from cudnn_fe.core.cute.block_tiles import SIDE, LanePlace, Matrix, ScalePlace, load_vector
from cudnn_fe.core.cute.fp8_widen import fp8_floats
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.small_floats import as_bits, as_float
from cudnn_fe.core.cute.staged import Staged
from cudnn_fe.core.cute.vectors import widen
from cudnn_fe.core.dtypes import dtype

__all__ = ["ExpertColumns", "TileRows", "expert_of", "load_rows"]

_STEPS = tuple(1 << bit for bit in range(10, -1, -1))  # of a search among at most 1024 experts
_HALF_ROW = (4, 2, 1)  # lane bits that 64 columns of a row span


def expert_of(offsets: Any, row: Any) -> Int32:
    """The expert of a lane's own row, L for one past the last end: a search of eleven loads."""
    count = Int32(offsets.shape[0])
    expert = Int32(0)
    for step in _STEPS:
        probe = expert + step
        known = Int32(probe <= count)
        (end,) = load_global(offsets.iterator.toint() + Int64(probe - 1) * 4, 4, known)
        expert = cutlass.select_((known & Int32(end <= row)) != 0, probe, expert)
    return expert


@dataclass(frozen=True)
class TileRows(Staged):
    """What this lane knows of its row, the tile's row of the lane's number.

    Attributes:
        first: The tile's first row.
        row: This lane's.
        expert: Whose it is; L past the last end.
        inside: Whether it belongs to an expert.
    """

    first: Int32
    row: Int32
    expert: Int32
    inside: Int32

    @staticmethod
    def of(offsets: Any, at: LanePlace, rows: Any) -> TileRows:
        """Of the tile that a lane works on.

        Args:
            offsets: (L,) ends.
            at: The lane's place.
            rows: Of the buffer.
        """
        lane = cute.arch.thread_idx()[0] % 32
        first = at.row - lane // SIDE * SIDE
        row = first + lane
        expert = expert_of(offsets, row)
        return TileRows(first, row, expert, Int32(expert < offsets.shape[0]) & Int32(row < rows))

    def of_lane(self, value: Any, at: LanePlace, count: int) -> list[Any]:
        """What the lanes of ``count`` rows from a lane's place on know."""
        return [cute.arch.shuffle_sync(value, at.row - self.first + j) for j in range(count)]

    def load(self, tensor: Any, index: Any) -> Float32:
        """A float32 or bfloat16 element for this lane's row; 0 where the row is no expert's."""
        size = tensor.element_type.width // 8
        address = tensor.iterator.toint() + Int64(index) * (Int64(tensor.stride[0]) * size)
        (word,) = load_global(address, size, self.inside)
        return as_float(word if size == 4 else word << 16)

    def end(self, offsets: Any, matrix: Matrix) -> Int32:
        """Where the last expert's rows end, within the matrix."""
        (end,) = load_global(offsets.iterator.toint() + (Int64(offsets.shape[0]) - 1) * 4, 4, Int32(1))
        return cutlass.max(cutlass.min(end, matrix.rows), Int32(0))

    def fold_amax(self, address: Int64, step: int, values: list[list[Any]], at: LanePlace) -> None:
        """Take the largest magnitude of each row into its expert's number.

        Args:
            address: Of the first expert's number.
            step: Bytes from expert to expert.
            values: Eight rows of eight; or four, where lanes that differ in bit 4 hold the eight rows of the same
                columns. Zeros outside the matrix.
            at: The place of the first.
        """
        largest = []
        for row in values:
            found: Any = Int32(0)
            for value in row:
                found = cutlass.max(found, as_bits(value) & 0x7FFFFFFF)
            largest.append(found)
        masks = _HALF_ROW[0 if len(values) == SIDE else 1 :]
        (own,), index = reduce_scatter(largest, masks, cute.arch.thread_idx()[0] % 32, cutlass.max)
        source = at.row - self.first + index
        expert, inside = (cute.arch.shuffle_sync(value, source) for value in (self.expert, self.inside))
        fold_largest(address + Int64(expert) * step, own, inside)


@dataclass(frozen=True)
class ExpertColumns(ScalePlace):
    """Column scales packed expert by expert; an expert's rows begin at a multiple of 128.

    Attributes:
        begin: First tile of 128 rows of the expert whose rows a warp works on.
        tiles: Its tiles.
    """

    begin: Any = 0
    tiles: Any = 0

    @staticmethod
    def of(offsets: Any, tile: TileRows, matrix: Matrix) -> ExpertColumns:
        """Of a warp's tile."""
        expert = cute.arch.shuffle_sync(tile.expert, 0)
        count = Int32(offsets.shape[0])
        start = offsets.iterator.toint() + Int64(expert) * 4
        (begin,) = load_global(start - 4, 4, Int32(expert > 0))
        (end,) = load_global(start, 4, Int32(expert < count))
        end = cutlass.select_(expert < count, end, (matrix.rows + 127) // 128 * 128)
        return ExpertColumns(True, 32, True, begin // 128, (end - begin) // 128)

    def locate(self, matrix: Matrix, at: LanePlace, offset: Any) -> tuple[Int64, Int64, Int32]:
        """Byte offset of a lane's scale ``offset`` columns on, the step to the next, and whether it is."""
        across, count = self.extents(matrix)
        index, part = at.column + offset, at.row // self.block
        atom = self.begin * (across // 128) + index // 128 * self.tiles + part // 4 - self.begin
        within = index % 32 * 16 + index // 32 % 4 * 4 + part % 4
        return Int64(atom) * 512 + within, Int64(16), Int32(index < across) & Int32(part < count)


def load_rows(tensor: Any, matrix: Matrix, at: LanePlace, access: int) -> list[list[Float32]]:
    """A lane's eight rows and columns of a matrix; zeros outside.

    Args:
        tensor: Whose type the elements have.
        matrix: The elements.
        at: The lane's place.
        access: Elements that may be read at once.
    """
    bits = tensor.element_type.width
    left = matrix.columns - at.column
    found = []
    for j in range(SIDE):
        address = matrix.place(at.batch, at.row + j, at.column * (bits // 8))
        found.append(load_vector(address, bits, access, left, Int32(at.row + j < matrix.rows)))
    kind = dtype(tensor.element_type)
    if kind.is_fp8:
        return [fp8_floats(words, kind.name) for words in found]
    return [widen(tensor.element_type, words, SIDE) for words in found]
