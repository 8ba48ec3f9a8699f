"""The largest magnitude of a whole tensor, in one fp32 number, by integer maxima: no order of arrival changes it."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute

from cudnn_fe.core.cute.ptx_base import assemble
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import as_bits

__all__ = ["clear_amax", "fold_amax"]

_LANES = (16, 8, 4, 2, 1)
_NAN = 0x7FC00000


@cute.kernel
def _clear(amax: cute.Tensor) -> None:
    store_global(amax.iterator.toint(), [Int32(0)], 4, Int32(1))


@cute.jit
def clear_amax(stream: cuda.CUstream, amax: cute.Tensor) -> None:
    """Launch what sets ``amax`` to 0, less than any magnitude of a tensor that has elements."""
    _clear(amax).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)


@cute.jit
def fold_amax(address: Int64, values: cutlass.Constexpr) -> None:
    """Take a warp's largest magnitude into the number at ``address``; bits order as numbers do, NaN above all.

    Few warps hold more than all before them: reading first spares most of the atomics, which all meet in one place.
    """
    largest: Any = Int32(0)
    for value in values:
        largest = cutlass.max(largest, as_bits(value) & 0x7FFFFFFF)
    for mask in _LANES:
        largest = cutlass.max(largest, cute.arch.shuffle_sync_bfly(largest, mask))
    lane = cute.arch.thread_idx()[0] % 32
    (before,) = assemble("ld.relaxed.gpu.global.b32 $0, [$1];", [Int32], [address])
    if Int32(lane == 0) & Int32(largest > before) != 0:
        assemble("red.global.max.s32 [$0], $1;", [], [address, cutlass.min(largest, Int32(_NAN))])
