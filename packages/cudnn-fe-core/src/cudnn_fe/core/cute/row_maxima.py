"""Maxima of groups of neighbouring float32 values."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.small_floats import as_float

__all__ = ["row_maxima"]

_NARROW, _WIDE = 8, 256  # threads to a group: for groups of a few values, and for others
_BLOCK = 256


@cute.jit
def row_maxima(
    stream: cuda.CUstream, values: cute.Tensor, maxima: cute.Tensor, early: cutlass.Constexpr = False
) -> None:
    """Launch ``maxima[g]``, the largest of the g-th of as many equal parts of ``values``; NaN left out, at least 0.

    Args:
        stream: Launch stream.
        values: float32.
        maxima: float32.
        early: Whether to start, and to wait, while the kernel before it ends: on SM90 and up.
    """
    many = values.shape[0] // maxima.shape[0]
    if many <= 4 * _NARROW:
        _launch(stream, values, maxima, _NARROW, early)
    else:
        _launch(stream, values, maxima, _WIDE, early)


@cute.jit
def _launch(
    stream: cuda.CUstream,
    values: cute.Tensor,
    maxima: cute.Tensor,
    threads: cutlass.Constexpr,
    early: cutlass.Constexpr,
) -> None:
    groups = _BLOCK // threads
    _maxima(values, maxima, threads, early).launch(
        grid=((maxima.shape[0] - 1) // groups + 1, 1, 1), block=(_BLOCK, 1, 1), stream=stream, use_pdl=early
    )


@cute.kernel
def _maxima(values: cute.Tensor, maxima: cute.Tensor, threads: cutlass.Constexpr, early: cutlass.Constexpr) -> None:
    groups = RowGroups(threads, _BLOCK // threads)
    shared = SmemAllocator().allocate(4 * groups.shared_words(), 16).toint()
    group, lane = groups.place()
    which = Int32(cute.arch.block_idx()[0]) * groups.groups + group
    many = Int32(values.shape[0]) // Int32(maxima.shape[0])
    inside = Int32(which < Int32(maxima.shape[0]))
    largest = Float32(0.0)
    if cutlass.const_expr(early):
        cute.arch.griddepcontrol_wait()
    for turn in cutlass.range((many + threads - 1) // threads, unroll=4):
        index = turn * threads + lane
        at = values.iterator.toint() + (Int64(which) * many + index) * 4
        (word,) = load_global(at, 4, inside * Int32(index < many))
        largest = cute.arch.fmax(largest, as_float(word))
    largest = groups.maximum(largest, shared, Int32(0))
    if lane == 0 and which < Int32(maxima.shape[0]):
        maxima[which] = largest
