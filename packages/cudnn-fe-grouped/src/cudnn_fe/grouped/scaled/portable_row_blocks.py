"""Blocks of 16 rows from each expert's first row on, of a matrix in memory: a lane holds all rows of two columns."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.amax import fold_amax
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import fused_multiply_add, multiply
from cudnn_fe.core.cute.expert_rows import row_tile, slot_count
from cudnn_fe.core.cute.hadamard import hadamard16
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.vectors import widen

__all__ = ["BLOCK", "RowBlocks", "TransformAmax"]

BLOCK = 16
_THREADS = 128
_PAIR = 2
_COLUMNS = _PAIR * _THREADS


class RowBlocks:
    """One block of rows for each CTA; what becomes of it is a subclass's matter.

    Args:
        access: 2 where pairs of neighbouring columns may be read at once, else 1.
    """

    def __init__(self, access: int) -> None:
        self.access = access

    @cute.jit
    def launch(self, stream: cuda.CUstream, source: cute.Tensor, offsets: cute.Tensor, more: Any) -> None:
        """Launch on ``stream``.

        Args:
            stream: The stream.
            source: (M, X) of a 16-bit type.
            offsets: (L,) ends.
            more: What `block` is given.
        """
        across = (Int32(source.shape[1]) - 1) // _COLUMNS + 1
        blocks = slot_count(offsets, source.shape[0], BLOCK) * across
        self.kernel(source, offsets, more, across).launch(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, source: cute.Tensor, offsets: cute.Tensor, more: Any, across: Int32) -> None:
        """One block of rows, and so many columns."""
        index = Int32(cute.arch.block_idx()[0])
        slot = index // across
        rows = row_tile(offsets, Int32(source.shape[0]), slot, BLOCK)
        column = index % across * _COLUMNS + Int32(cute.arch.thread_idx()[0]) * _PAIR
        used = Int32(rows.expert < offsets.shape[0]) & Int32(rows.rows > 0)
        if used != 0:
            self.block(self.columns(source, rows, column), slot, rows.expert, column, more)

    def columns(self, source: Any, rows: Any, column: Any) -> list[list[Float32]]:
        """Two columns of 16 rows rounded to bfloat16; zeros where there are none."""
        kind = source.element_type
        width = Int32(source.shape[1])
        found = []
        for j in range(BLOCK):
            address = source.iterator.toint() + (Int64(rows.first + j) * Int64(source.stride[0]) + Int64(column)) * 2
            here = Int32(j < rows.rows)
            if self.access == _PAIR:
                (word,) = load_global(address, 4, here & Int32(column < width))
            else:
                low, high = (load_global(address + 2 * k, 2, here & Int32(column + k < width))[0] for k in range(_PAIR))
                word = low | (high << 16)
            found.append(widen_pairs([word]) if kind is cutlass.BFloat16 else _rounded(widen(kind, [word], _PAIR)))
        return [list(line) for line in zip(*found, strict=True)]

    def block(self, columns: Any, slot: Int32, expert: Int32, column: Int32, more: Any) -> None:
        """What becomes of two columns of a block; every lane of a warp takes part."""
        raise NotImplementedError


def _rounded(values: list[Any]) -> list[Float32]:
    """To bfloat16."""
    return widen_pairs(narrow_pairs(values))


class TransformAmax(RowBlocks):
    """The largest magnitude of each expert's blocks after a transform of 16, a quarter of it; ``more`` is the matrix,
    or None for the Hadamard matrix, and the (L, 1) results."""

    def block(self, columns: Any, slot: Int32, expert: Int32, column: Int32, more: Any) -> None:
        """Fold the largest of a warp."""
        del slot, column
        matrix, results = more
        if matrix is None:
            found = [value for line in columns for value in hadamard16(line)]
        else:
            found = self.product(columns, matrix)
        address = results.iterator.toint() + Int64(expert) * 4
        fold_amax(address, [multiply(value, 0.25) for value in found])

    def product(self, columns: Any, matrix: Any) -> list[Float32]:
        """The matrix, rounded to bfloat16, times each column."""
        kind = matrix.element_type
        size = kind.width // 8
        down, along = (Int64(step) * size for step in matrix.stride)
        found = []
        for i in range(BLOCK):
            totals = [Float32(0.0)] * _PAIR
            for j in range(BLOCK):
                (word,) = load_global(matrix.iterator.toint() + i * down + j * along, size, Int32(1))
                (weight,) = widen(kind, [word], 1)
                rounded, _ = _rounded([weight, weight])
                totals = [
                    fused_multiply_add(rounded, line[j], total) for line, total in zip(columns, totals, strict=True)
                ]
            found += totals
        return found
