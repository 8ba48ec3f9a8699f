"""Sums over the rows of a float32 matrix in a fixed order: the last step of every gradient summed over blocks."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.row_vectors import load_floats, store_floats, store_global

__all__ = ["add_rows"]

_WARPS = 8
_COLUMNS = 128  # of a block: four a lane


@cute.jit
def add_rows(
    stream: cuda.CUstream,
    partials: cute.Tensor,
    target: Int64,
    columns: cutlass.Constexpr,
    dtype: cutlass.Constexpr = "float32",
) -> None:
    """Launch the sum of the rows of ``partials``; warp w takes rows w, w + 8, ..., and the warps are added in order.

    Args:
        stream: Launch stream.
        partials: (rows, columns) float32, compact, 16-byte aligned rows.
        target: Address of the sums, aligned to four of them.
        columns: A multiple of 4.
        dtype: Their type, ``"float32"`` or ``"bfloat16"``.
    """
    blocks = (columns + _COLUMNS - 1) // _COLUMNS
    _add_rows(partials, target, columns, dtype).launch(grid=(blocks, 1, 1), block=(32 * _WARPS, 1, 1), stream=stream)


@cute.kernel
def _add_rows(partials: cute.Tensor, target: Int64, columns: cutlass.Constexpr, dtype: cutlass.Constexpr) -> None:
    shared = SmemAllocator().allocate(16 * 32 * _WARPS, 16).toint()
    thread = Int32(cute.arch.thread_idx()[0])
    lane, warp = thread % 32, thread // 32
    column = Int32(cute.arch.block_idx()[0]) * _COLUMNS + lane * 4
    inside = Int32(column < columns)
    sums = cute.make_rmem_tensor(4, Float32)
    sums.fill(0.0)
    rows = Int32(partials.shape[0])
    for turn in cutlass.range((rows - warp + _WARPS - 1) // _WARPS, unroll=4):
        at = partials.iterator.toint() + (Int64(warp + turn * _WARPS) * columns + column) * 4
        for index, value in enumerate(load_floats(at, 4, inside)):
            sums[index] += value
    store_shared(shared + thread * 16, [sums[index] for index in range(4)], 16)
    cute.arch.sync_threads()
    if warp == 0:
        totals = load_shared(shared + lane * 16, 4, Float32)
        for other in cutlass.range_constexpr(1, _WARPS):
            part = load_shared(shared + (lane + 32 * other) * 16, 4, Float32)
            totals = [total + value for total, value in zip(totals, part, strict=True)]
        if cutlass.const_expr(dtype == "float32"):
            store_floats(target + Int64(column) * 4, totals, inside)
        else:
            store_global(target + Int64(column) * 2, narrow_pairs(totals), 8, inside)
