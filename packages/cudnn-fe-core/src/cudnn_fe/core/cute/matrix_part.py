"""A part of a matrix in global memory: what loaders read and epilogues write, wherever it comes from."""

from __future__ import annotations

from typing import Any, NamedTuple

from cutlass import Int32, Int64

from cudnn_fe.core.cute.ptx_base import assemble, load_global

__all__ = ["MatrixPart", "load_address"]


def load_address(addresses: Any, index: Any) -> Int64:
    """One of an array's addresses, int64 or eight bytes each."""
    low, high = load_global(addresses.iterator.toint() + Int64(index) * 8, 8, Int32(1))
    (address,) = assemble("mov.b64 $0, {$1, $2};", [Int64], [low, high])
    return address


class MatrixPart(NamedTuple):
    """Rows and columns from some element of a matrix on. K counts as an operand's columns.

    Attributes:
        address: Of the first element.
        row_stride: Bytes from row to row.
        column_stride: Bytes from column to column.
        rows: Rows left; none if 0 or less.
        columns: Columns left.
    """

    address: Int64
    row_stride: Int64
    column_stride: Int64
    rows: Int32
    columns: Int32

    @staticmethod
    def of(tensor: Any, batch: Any = None, batch_dim: int = 2) -> MatrixPart:
        """A (rows, columns) tensor, or one matrix of (rows, columns, L), where ``batch_dim`` tells L."""
        size = tensor.element_type.width // 8
        dims = [dim for dim in range(len(tensor.shape)) if batch is None or dim != batch_dim]
        row_stride, column_stride = (Int64(tensor.stride[dim]) * size for dim in dims)
        address = tensor.iterator.toint()
        if batch is not None:
            address += Int64(batch) * (Int64(tensor.stride[batch_dim]) * size)
        rows, columns = (Int32(tensor.shape[dim]) for dim in dims)
        return MatrixPart(address, row_stride, column_stride, rows, columns)

    @staticmethod
    def of_vector(tensor: Any) -> MatrixPart:
        """A (rows,) tensor as one column."""
        size = tensor.element_type.width // 8
        return MatrixPart(
            tensor.iterator.toint(), Int64(tensor.stride[0]) * size, Int64(size), Int32(tensor.shape[0]), Int32(1)
        )

    @staticmethod
    def at(addresses: Any, index: Any, dtype: Any, extents: tuple[Any, Any], row_major: bool = True) -> MatrixPart:
        """The compact (rows, columns) matrix at one of an array's addresses, int64 or eight bytes each.

        Args:
            addresses: The array.
            index: Which one.
            dtype: Element type of the matrix.
            extents: Its rows and columns.
            row_major: Whether its columns are contiguous, not its rows.
        """
        address = load_address(addresses, index)
        rows, columns = (Int32(extent) for extent in extents)
        size = Int64(dtype.width // 8)
        strides = (Int64(columns) * size, size) if row_major else (size, Int64(rows) * size)
        return MatrixPart(address, *strides, rows, columns)

    def from_row(self, row: Any, rows: Any = None) -> MatrixPart:
        """What begins at a row; ``rows`` says how many are left there, if fewer than to the end."""
        left = self.rows - row if rows is None else rows
        return self._replace(address=self.address + Int64(row) * self.row_stride, rows=left)

    def from_column(self, column: Any, columns: Any = None) -> MatrixPart:
        """What begins at a column; ``columns`` says how many are left there, if fewer than to the end."""
        left = self.columns - column if columns is None else columns
        return self._replace(address=self.address + Int64(column) * self.column_stride, columns=left)

    def transposed(self) -> MatrixPart:
        """Rows as columns."""
        return MatrixPart(self.address, self.column_stride, self.row_stride, self.columns, self.rows)
