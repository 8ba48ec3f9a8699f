"""Sums over the rows of float32 matrices in a fixed order: the last step of every gradient summed over blocks."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.row_vectors import load_floats, store_floats, store_global

__all__ = ["add_rows"]

_THREADS = 256
_LANES = 8  # of a row: four columns each, a line of memory together
_ROWS = _THREADS // _LANES  # at a time


@cute.jit
def add_rows(
    stream: cuda.CUstream, sums: cutlass.Constexpr, columns: cutlass.Constexpr, dtype: cutlass.Constexpr = "float32"
) -> None:
    """Launch the sums of the rows of one or two matrices; thread r of a column takes rows r, r + 32, ..., in order.

    Args:
        stream: Launch stream.
        sums: Pairs of a matrix (rows, columns), float32, compact, with 16-byte aligned rows, and the address of its
            sums, aligned to four of them. All have as many rows.
        columns: A multiple of 4.
        dtype: Type of the sums, ``"float32"`` or ``"bfloat16"``.
    """
    blocks = (columns + 4 * _LANES - 1) // (4 * _LANES)
    sources = [Int64(partials.iterator.toint()) for partials, _ in sums]
    targets = [Int64(target) for _, target in sums]
    rows = Int32(sums[0][0].shape[0])
    _add_rows(sources[0], sources[-1], targets[0], targets[-1], rows, columns, dtype).launch(
        grid=(blocks, len(sums), 1), block=(_THREADS, 1, 1), stream=stream
    )


@cute.kernel
def _add_rows(
    first: Int64,
    second: Int64,
    first_target: Int64,
    second_target: Int64,
    rows: Int32,
    columns: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
) -> None:
    shared = SmemAllocator().allocate(16 * _THREADS, 16).toint()
    which = cute.arch.block_idx()[1] == 0
    source, target = cutlass.select_(which, first, second), cutlass.select_(which, first_target, second_target)
    thread = Int32(cute.arch.thread_idx()[0])
    lane, own = thread % _LANES, thread // _LANES
    column = (Int32(cute.arch.block_idx()[0]) * _LANES + lane) * 4
    inside = Int32(column < columns)
    totals = cute.make_rmem_tensor(4, Float32)
    totals.fill(0.0)
    for turn in cutlass.range((rows - own + _ROWS - 1) // _ROWS, unroll=8):
        at = source + (Int64(own + turn * _ROWS) * columns + column) * 4
        for index, value in enumerate(load_floats(at, 4, inside)):
            totals[index] += value
    store_shared(shared + thread * 16, [totals[index] for index in range(4)], 16)
    cute.arch.sync_threads()
    if thread < _LANES:
        _finish(shared + thread * 16, target, column, inside, dtype)


def _finish(own: Any, target: Any, column: Any, inside: Any, dtype: str) -> None:
    """Four columns' sums, added in the order of their first rows and stored."""
    totals = load_shared(own, 4, Float32)
    for other in range(1, _ROWS):
        part = load_shared(own + other * (16 * _LANES), 4, Float32)
        totals = [total + value for total, value in zip(totals, part, strict=True)]
    if dtype == "float32":
        store_floats(target + Int64(column) * 4, totals, inside)
    else:
        store_global(target + Int64(column) * 2, narrow_pairs(totals), 8, inside)
