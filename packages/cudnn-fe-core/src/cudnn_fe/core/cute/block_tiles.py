"""How warps walk a matrix in tiles of 32 rows and 64 columns, so that blocks along rows and columns lie in one warp.

Lane ``8 g + v`` holds rows ``8 g`` to ``8 g + 7`` and columns ``8 v`` to ``8 v + 7``. A row's block of 32 columns is
four neighbouring lanes, a column's block of 32 rows is the four lanes of equal v, and eight lanes read 64 neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cutlass import Int32, Int64, cute

from cudnn_fe.core.cute.narrow import narrow_words
from cudnn_fe.core.cute.ptx_base import assemble, load_global
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.staged import Staged

__all__ = [
    "SIDE",
    "THREADS",
    "LanePlace",
    "Matrix",
    "ScalePlace",
    "lane_place",
    "load_lines",
    "load_vector",
    "store_rows",
    "store_vector_bytes",
    "tile_walk",
]

SIDE = 8  # rows, and columns, of a lane
TILE_ROWS = 32
_WARP_COLUMNS = 64
THREADS = 128
_BLOCK_COLUMNS = THREADS // 32 * _WARP_COLUMNS


@dataclass(frozen=True)
class LanePlace(Staged):
    """Where a lane works: its batch, first row, and first column."""

    batch: Int32
    row: Int32
    column: Int32


@dataclass(frozen=True)
class Matrix(Staged):
    """A batch of matrices with neighbouring columns side by side.

    Attributes:
        address: Of the first byte.
        batch_bytes: From matrix to matrix.
        row_bytes: From row to row.
        rows: Extent.
        columns: Extent, in elements.
    """

    address: Int64
    batch_bytes: Int64
    row_bytes: Int64
    rows: Int32
    columns: Int32

    @staticmethod
    def of(tensor: Any, dims: tuple[int, int, int], across: int = 1, down: int = 1) -> Matrix:
        """A tensor's matrix.

        Args:
            tensor: At least two dims.
            dims: Its batch, row and column dim; a batch dim that it does not have means one matrix.
            across: Columns that a stored element holds.
            down: Rows that a stored element holds.
        """
        size = tensor.element_type.width // 8
        batch, row, column = dims
        return Matrix(
            tensor.iterator.toint(),
            Int64(tensor.stride[batch]) * size if batch < len(tensor.shape) else Int64(0),
            Int64(tensor.stride[row]) * size,
            Int32(tensor.shape[row]) * down,
            Int32(tensor.shape[column]) * across,
        )

    def one(self, batch: Any) -> Matrix:
        """One matrix of the batch, by itself."""
        return replace(self, address=self.address + Int64(batch) * self.batch_bytes, batch_bytes=Int64(0))

    def place(self, batch: Any, row: Any, column_bytes: Any) -> Int64:
        """Address of a byte of a row."""
        return self.address + Int64(batch) * self.batch_bytes + Int64(row) * self.row_bytes + Int64(column_bytes)


@dataclass(frozen=True)
class ScalePlace:
    """The scales of a matrix quantised along one direction.

    Attributes:
        columns: Whether blocks lie along columns; a scale belongs to a row otherwise.
        block: Elements per scale.
        packed: 512-byte atoms of 128 rows (or columns) and 4 scales, else plain.
    """

    columns: bool
    block: int
    packed: bool

    def extents(self, matrix: Matrix) -> tuple[Int32, Int32]:
        """Rows (or columns) that have scales, and how many each has, padding of the atoms included."""
        across, along = (matrix.columns, matrix.rows) if self.columns else (matrix.rows, matrix.columns)
        count = (along + (self.block - 1)) // self.block
        if not self.packed:
            return across, count
        return (across + 127) // 128 * 128, (count + 3) // 4 * 4

    def locate(self, matrix: Matrix, at: LanePlace, offset: Any) -> tuple[Int64, Int64, Int32]:
        """Byte offset of a lane's scale ``offset`` rows (or columns) on, the step to the next, and whether it is."""
        across, count = self.extents(matrix)
        first, along = (at.column, at.row) if self.columns else (at.row, at.column)
        index, part = first + offset, along // self.block
        valid = Int32(index < across) & Int32(part < count)
        if self.packed:
            atom = (Int64(at.batch) * (across // 128) + index // 128) * (count // 4) + part // 4
            within = index % 32 * 16 + index // 32 % 4 * 4 + part % 4
            return atom * 512 + within, Int64(16), valid
        if self.columns:
            return (Int64(at.batch) * count + part) * across + index, Int64(1), valid
        return (Int64(at.batch) * across + index) * count + part, Int64(count), valid


def tile_walk(rows: Any, columns: Any, batches: Any) -> tuple[Any, Any]:
    """Blocks along the grid's x, and what `lane_place` divides by; made on the host side of the launch."""
    by_columns = (Int32(columns) - 1) // _BLOCK_COLUMNS + 1
    by_rows = (Int32(rows) - 1) // TILE_ROWS + 1
    walk = (cute.fast_divmod_create_divisor_v2(by_columns), cute.fast_divmod_create_divisor_v2(by_rows))
    return by_columns * by_rows * Int32(batches), walk


def lane_place(walk: Any) -> LanePlace:
    """This lane's place."""
    by_columns, by_rows = walk
    thread = cute.arch.thread_idx()[0]
    lane = thread % 32
    across, tile_column = divmod(cute.arch.block_idx()[0], by_columns)
    batch, tile_row = divmod(across, by_rows)
    return LanePlace(
        batch,
        tile_row * TILE_ROWS + lane // 8 * SIDE,
        tile_column * _BLOCK_COLUMNS + thread // 32 * _WARP_COLUMNS + lane % 8 * SIDE,
    )


def load_lines(matrix: Matrix, at: LanePlace, bits: int, access: int, count: int = SIDE, per: int = 1) -> Any:
    """Eight elements of each of a lane's lines as words; zeros outside the matrix.

    Args:
        matrix: Extents in elements; a line of its memory holds ``per`` rows.
        at: The lane's place.
        bits: Of an element: 4, 8, 16 or 32.
        access: Elements that may be read at once; see `load_vector`.
        count: Lines.
        per: Rows of a line.
    """
    address = matrix.place(at.batch, at.row // per if per > 1 else at.row, at.column * bits // 8)
    left, below = matrix.columns - at.column, matrix.rows - at.row
    size = SIDE * bits // 8
    if access == SIDE and size in (4, 8, 16):
        return _load_at_once(address, matrix.row_bytes, size, count, per, left, below)
    lines = []
    for line in range(count):
        lines.append(load_vector(address + line * matrix.row_bytes, bits, access, left, Int32(line * per < below)))
    return lines


def _load_at_once(address: Int64, step: Int64, size: int, count: int, per: int, left: Any, below: Any) -> Any:
    """One load a line, all under way together.

    Inside the matrix there is no predicate: with eight of them, more than the machine has, the assembler would wait for
    half of the loads before it issues the rest.
    """
    width = size // 4
    names = [[f"${line * width + part}" for part in range(width)] for line in range(count)]
    base, stride, columns, rows = (f"${count * width + index}" for index in range(4))
    vector = f".v{width}" if width > 1 else ""

    def load(line: int) -> str:
        into = names[line][0] if width == 1 else "{" + ",".join(names[line]) + "}"
        return f"ld.global{vector}.b32 {into}, [a];"

    inside = " add.s64 a, a, s; ".join(load(line) for line in range(count))
    edge = [f"mov.b32 {name}, 0;" for line in names for name in line]
    for line in range(count):
        edge.append(f"setp.gt.and.s32 p, {rows}, {line * per}, c; @p {load(line)} add.s64 a, a, s;")
    code = (
        "{ .reg .pred c, p; .reg .b64 a, s; "
        f"mov.b64 a, {base}; mov.b64 s, {stride}; setp.gt.s32 c, {columns}, 0; "
        f"setp.ge.and.s32 p, {rows}, {count * per}, c; @p bra INSIDE; "
        f"{' '.join(edge)} bra.uni DONE; INSIDE: {inside} DONE: }}"
    )
    words = assemble(code, [Int32] * (count * width), [Int64(address), Int64(step), Int32(left), Int32(below)])
    return [words[line * width : (line + 1) * width] for line in range(count)]


def load_vector(address: Int64, bits: int, access: int, left: Any, valid: Any) -> list[Int32]:
    """Eight elements of ``bits`` each as words; zeros past the first ``left`` ones, and unless ``valid``.

    Args:
        address: Of the first.
        bits: 4, 8, 16 or 32.
        access: Elements, a power of two, that may be read at once: the row's extent is a multiple of them.
        left: Elements from the first to the row's end.
        valid: Whether to read at all.
    """
    chunk = access * bits // 8
    loaded = []
    for start in range(0, SIDE, access):
        inside = Int32(valid) & Int32(start < left)
        for part in range(0, chunk, 16):
            loaded += load_global(address + start * bits // 8 + part, min(chunk, 16), inside)
    if chunk >= 4:
        return loaded
    per_word = 4 // chunk
    words = []
    for first in range(0, len(loaded), per_word):
        word = loaded[first]
        for index in range(1, per_word):
            word = word | (loaded[first + index] << (8 * chunk * index))
        words.append(word)
    return words


def store_vector_bytes(address: Int64, words: list[Any], bits: int, access: int, left: Any, valid: Any) -> None:
    """The inverse of `load_vector`."""
    chunk = access * bits // 8
    for start in range(0, SIDE, access):
        inside = Int32(valid) & Int32(start < left)
        for part in range(0, chunk, 16):
            byte = start * bits // 8 + part
            size = min(chunk, 16)
            given = words[byte // 4 : (byte + size + 3) // 4]
            if size < 4:
                given = [(given[0] >> (byte % 4 * 8)) & ((1 << 8 * size) - 1)]
            store_global(address + byte, given, size, inside)


def store_rows(
    target: Matrix, name: str, values: list[list[Any]], at: LanePlace, access: int, native: bool, bits: int
) -> None:
    """Round a lane's rows and store what lies inside.

    Args:
        target: Where they go.
        name: The elements' type.
        values: Rows of eight.
        at: The first one's place.
        access: Elements that may be written at once.
        native: Whether the target converts to FP8.
        bits: Of an element.
    """
    left = target.columns - at.column
    for j, row in enumerate(values):
        address = target.place(at.batch, at.row + j, at.column * bits // 8)
        words = narrow_words(name, row, native)
        store_vector_bytes(address, words, bits, access, left, Int32(at.row + j < target.rows))
