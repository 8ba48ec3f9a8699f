"""The last step of the sums along rows (dprob) and along an expert's rows (dbias): parts, in a fixed order.

The rows of expert e come in parts of equal height from its first row on; part t has the place
``begin(e) // height + e + t``, which no two parts share whatever the offsets are.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.group_scheduler import group_bounds
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.vectors import widen

__all__ = ["add_column_parts", "add_row_parts", "column_sum", "part_place"]

_THREADS = 128
_AHEAD = 8
_ROWS, _SHARES = 32, 8  # of a block that sums parts of rows: a warp takes every eighth part of 32 rows


def part_place(begin: Any, expert: Any, height: int) -> Any:
    """The place of an expert's first part."""
    return begin // height + expert


@cute.jit
def column_sum(x: cute.Tensor, first: Any, step: cutlass.Constexpr[int], count: Int32, column: Int32) -> Float32:
    """The sum of `count` values of a column of float32 `x`, every `step`-th row from `first` on, in their order.

    Their loads are under way eight at a time; an ordinary loop waits for each before the next, however it is unrolled.
    """
    down, start = Int64(x.stride[0]) * 4, x.iterator.toint() + Int64(column) * Int64(x.stride[1]) * 4
    total = Float32(0.0)
    for turn in cutlass.range(cute.ceil_div(count, _AHEAD)):
        words = []
        for ahead in cutlass.range_constexpr(_AHEAD):
            index = turn * _AHEAD + ahead
            words += load_global(start + Int64(first + index * step) * down, 4, Int32(index < count))
        for value in widen(Float32, words, _AHEAD):
            total += value
    return total


@cute.jit
def add_row_parts(
    stream: CUstream, parts: cute.Tensor, offsets: cute.Tensor, sums: cute.Tensor, fills: cutlass.Constexpr[bool]
) -> None:
    """Launch the sums over the first dim of `parts` (P, M), for the experts' rows; the others get zeros if `fills`."""
    blocks = cute.ceil_div(Int32(sums.shape[0]), _ROWS)
    _add_row_parts(parts, offsets, sums, fills).launch(
        grid=(blocks, 1, 1), block=(_ROWS * _SHARES, 1, 1), stream=stream
    )


@cute.kernel
def _add_row_parts(parts: cute.Tensor, offsets: cute.Tensor, sums: cute.Tensor, fills: cutlass.Constexpr[bool]) -> None:
    rows, count = Int32(sums.shape[0]), Int32(parts.shape[0])
    thread = cute.arch.thread_idx()[0]
    lane, share = thread % _ROWS, thread // _ROWS
    row = cute.arch.block_idx()[0] * _ROWS + lane
    _, end = group_bounds(offsets, Int32(offsets.shape[0]), rows)
    turns = cutlass.select_(row < end, cute.ceil_div(count - share, _SHARES), Int32(0))
    total = column_sum(parts, share, _SHARES, turns, row)
    shares = SmemAllocator().allocate_tensor(Float32, cute.make_layout((_ROWS, _SHARES)), 16)
    shares[lane, share] = total
    cute.arch.sync_threads()
    last = rows if fills else end
    if share == 0 and row < last:
        for other in cutlass.range_constexpr(1, _SHARES):
            total += shares[lane, other]
        sums[row] = total


@cute.jit
def add_column_parts(
    stream: CUstream,
    parts: cute.Tensor,
    offsets: cute.Tensor,
    rows: Int32,
    sums: cute.Tensor,
    height: cutlass.Constexpr[int],
    tiled: cutlass.Constexpr[bool] = False,
) -> None:
    """Launch the sums of each expert's parts, rows of `parts` (P, W), into `sums` (L, W, 1).

    With `tiled` the parts are of tiles of the buffer, wherever experts begin: tile t has the place ``t + e``.
    """
    grid = (cute.ceil_div(Int32(sums.shape[1]), _THREADS), Int32(sums.shape[0]), 1)
    _add_column_parts(parts, offsets, rows, sums, height, tiled).launch(
        grid=grid, block=(_THREADS, 1, 1), stream=stream
    )


@cute.kernel
def _add_column_parts(
    parts: cute.Tensor,
    offsets: cute.Tensor,
    rows: Int32,
    sums: cute.Tensor,
    height: cutlass.Constexpr[int],
    tiled: cutlass.Constexpr[bool],
) -> None:
    column = cute.arch.block_idx()[0] * _THREADS + cute.arch.thread_idx()[0]
    expert = cute.arch.block_idx()[1]
    begin, end = group_bounds(offsets, expert, rows)
    first = part_place(begin, expert, height)
    # In a tile that another expert's rows begin, an expert's own ones reach into one more.
    before = begin % height if cutlass.const_expr(tiled) else Int32(0)
    filled = cutlass.select_(end > begin, end - begin + before, Int32(0))
    if column < Int32(sums.shape[1]):
        total = column_sum(parts, first, 1, cute.ceil_div(filled, height), column)
        sums[expert, column, 0] = sums.element_type(total)
