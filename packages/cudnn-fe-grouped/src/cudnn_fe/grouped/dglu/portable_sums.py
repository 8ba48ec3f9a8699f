"""The last step of the sums along rows (dprob) and along an expert's rows (dbias): parts, in a fixed order.

The rows of expert e come in parts of equal height from its first row on; part t has the place
``begin(e) // height + e + t``, which no two parts share whatever the offsets are.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.group_scheduler import group_bounds

__all__ = ["add_column_parts", "add_row_parts", "part_place"]

_THREADS = 128


def part_place(begin: Any, expert: Any, height: int) -> Any:
    """The place of an expert's first part."""
    return begin // height + expert


@cute.jit
def add_row_parts(
    stream: CUstream, parts: cute.Tensor, offsets: cute.Tensor, sums: cute.Tensor, fills: cutlass.Constexpr[bool]
) -> None:
    """Launch the sums over the first dim of `parts` (P, M), for the experts' rows; the others get zeros if `fills`."""
    blocks = cute.ceil_div(Int32(sums.shape[0]), _THREADS)
    _add_row_parts(parts, offsets, sums, fills).launch(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream)


@cute.kernel
def _add_row_parts(parts: cute.Tensor, offsets: cute.Tensor, sums: cute.Tensor, fills: cutlass.Constexpr[bool]) -> None:
    rows = Int32(sums.shape[0])
    row = cute.arch.block_idx()[0] * _THREADS + cute.arch.thread_idx()[0]
    _, end = group_bounds(offsets, Int32(offsets.shape[0]), rows)
    last = rows if fills else end
    total = Float32(0.0)
    for part in cutlass.range(cutlass.select_(row < end, Int32(parts.shape[0]), Int32(0)), unroll=8):
        total += parts[part, row]
    if row < last:
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
        total = Float32(0.0)
        for part in cutlass.range(cute.ceil_div(filled, height), unroll=8):
            total += parts[first + part, column]
        sums[expert, column, 0] = sums.element_type(total)
