"""Zeros into the rows of a matrix that no tile covers."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute

from cudnn_fe.core.cute.vectors import store_vector

__all__ = ["zero_rows"]

_VECTOR_BITS = 128


@cute.jit
def zero_rows(out: cute.Tensor, first: Int32, worker: Int32, workers: Int32, thread: Int32, threads: Int32) -> None:
    """Fill rows from `first` on of (M, N), whose rows are multiples of 16 bytes; row by row, worker by worker."""
    count = _VECTOR_BITS // out.element_type.width
    vectors = Int32(out.shape[1]) // count
    for row in cutlass.range(first + worker, Int32(out.shape[0]), workers, unroll=1):
        start = out.iterator.toint() + Int64(row) * Int64(out.stride[0]) * (out.element_type.width // 8)
        for vector in cutlass.range(thread, vectors, threads, unroll=1):
            address = start + Int64(vector) * (_VECTOR_BITS // 8)
            store_vector(out.element_type, address, [cutlass.Float32(0.0)] * count)
