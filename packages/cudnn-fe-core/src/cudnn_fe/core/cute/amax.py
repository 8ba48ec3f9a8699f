"""The largest magnitude of a whole tensor, in one fp32 number, by integer maxima: no order of arrival changes it."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute

from cudnn_fe.core.cute.ptx_base import assemble
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import as_bits

__all__ = ["clear_amax", "fold_amax", "fold_largest"]

_LANES = (16, 8, 4, 2, 1)
_THREADS = 128
_NAN, _MINUS_INFINITY = 0x7FC00000, 0xFF800000 - (1 << 32)


@cute.kernel
def _clear(amax: cute.Tensor, bits: Int32, count: Int32) -> None:
    index = cute.arch.block_idx()[0] * _THREADS + cute.arch.thread_idx()[0]
    store_global(amax.iterator.toint() + Int64(index) * 4, [bits], 4, Int32(index < count))


@cute.jit
def clear_amax(stream: cuda.CUstream, amax: cute.Tensor, start: cutlass.Constexpr = 0.0) -> None:
    """Launch what sets compact ``amax`` to ``start``: less than any magnitude if minus infinity, else 0."""
    count = Int32(cute.size(amax))
    bits = Int32(0 if start == 0 else _MINUS_INFINITY)
    _clear(amax, bits, count).launch(grid=((count - 1) // _THREADS + 1, 1, 1), block=(_THREADS, 1, 1), stream=stream)


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
    fold_largest(address, largest, Int32(cute.arch.thread_idx()[0] % 32 == 0))


@cute.jit
def fold_largest(address: Int64, largest: Int32, wanted: Int32) -> None:
    """Take the bits of a magnitude into the number at ``address`` where ``wanted``."""
    before = largest
    if wanted != 0:
        (before,) = assemble("ld.relaxed.gpu.global.b32 $0, [$1];", [Int32], [address])
    if largest > before:
        assemble("red.global.max.s32 [$0], $1;", [], [address, cutlass.min(largest, Int32(_NAN))])
