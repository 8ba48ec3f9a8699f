"""How a block shares rows of 16-bit elements among its threads: plain data, chosen from the row's width alone."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RowPlan", "access_bytes", "row_plan"]

from cudnn_fe.core.tensor import TensorSpec

_VECTOR_BYTES = 16
_MOST_THREADS = 1024
_BLOCK = 128  # threads that narrow rows share a block up to


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Threads and registers of a row.

    Attributes:
        threads: Neighbouring threads that share a row, a power of two.
        groups: Rows that a block works on at a time.
        vectors: 16-byte vectors that one thread holds in registers at a time.
        tiles: Times that it takes to go through a row; above 1 the row does not stay in registers and is read again.
    """

    threads: int
    groups: int
    vectors: int
    tiles: int = 1


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def row_plan(columns: int, *, rows: int | None = None, vectors: int = 4, least_threads: int = 1) -> RowPlan:
    """The plan for rows of ``columns`` 16-bit elements.

    Args:
        columns: Elements of a row.
        rows: Most rows at a time, if the block has only so many; None for any number.
        vectors: Vectors a thread should hold; rows too wide for 1024 threads get up to twice as many.
        least_threads: A power of two.

    Example:
        >>> row_plan(4096)
        RowPlan(threads=128, groups=1, vectors=4, tiles=1)
    """
    per_row = -(-columns * 2 // _VECTOR_BYTES)
    threads = max(min(_power_of_two(-(-per_row // vectors)), _MOST_THREADS), least_threads)
    each = max(-(-per_row // threads), 1)
    held = min(each, 2 * vectors) if threads == _MOST_THREADS else each
    tiles = -(-per_row // (threads * held))
    groups = max(_BLOCK // threads, 1)
    if rows is not None:
        groups = min(groups, max(_power_of_two(rows), 1))
    groups = max(groups, 32 // threads)  # whole warps
    return RowPlan(threads, groups, held, tiles)


def access_bytes(*specs: TensorSpec | None) -> int:
    """Bytes, up to 16, that divide the addresses of all rows of all operands: how wide a kernel may access them."""
    found = _VECTOR_BYTES
    for spec in specs:
        if spec is None:
            continue
        steps = [step for step, extent in zip(spec.strides, spec.shape, strict=True) if extent > 1 and step != 1]
        for nbytes in (spec.alignment, *(step * spec.dtype.itemsize for step in steps)):
            found = min(found, nbytes & -nbytes) if nbytes else found
    return found
