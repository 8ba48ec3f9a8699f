"""Which expert's rows a CTA works on, found on the device from the ends of the experts' rows.

Tile t of expert e has the slot ``begin(e) // height + e + t``. Slots rise with e and t and no two tiles share one,
whatever the offsets are, so a CTA finds its expert by counting, without a sum over the experts before it. Some slots
stay unused, at most one for each expert. The rows past the last end are those of one more expert, L.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from cudnn_fe.core.cute.ptx_base import load_global

__all__ = ["RowTile", "first_slot", "row_owner", "row_range", "row_tile", "slot_count"]

_WARP = 32


class RowTile(NamedTuple):
    """A tile's rows.

    Attributes:
        expert: Whose they are; L for the rows past the end.
        first: The first one.
        rows: How many are left from there on, maybe more than a tile's; none if 0 or less.
    """

    expert: Int32
    first: Int32
    rows: Int32


def slot_count(offsets: Any, rows: Any, height: int) -> Int32:
    """Slots of a buffer with ``rows`` rows, those past the end included; a host value in a launcher."""
    return Int32(rows) // height + Int32(offsets.shape[0]) + 1


@cute.jit
def _begin(offsets: cute.Tensor, rows: Int32, expert: Int32) -> Int32:
    """First row of an expert, 0 to L; never outside of the buffer, whatever the offsets hold."""
    address = offsets.iterator.toint() + Int64(expert - 1) * 4
    inside = Int32(expert > 0) & Int32(expert <= offsets.shape[0])
    (end,) = load_global(address, 4, inside)
    return cutlass.max(cutlass.min(end, rows), Int32(0))


@cute.jit
def row_range(offsets: cute.Tensor, rows: Int32, expert: Int32) -> Any:
    """First row and number of rows of an expert of 0 to L - 1."""
    begin = _begin(offsets, rows, expert)
    return begin, cutlass.max(_begin(offsets, rows, expert + 1) - begin, Int32(0))


def first_slot(begin: Any, expert: Any, height: int) -> Any:
    """The slot of an expert's first tile."""
    return begin // height + expert


@cute.jit
def row_tile(offsets: cute.Tensor, rows: Int32, slot: Int32, height: cutlass.Constexpr) -> Any:
    """The `RowTile` of a slot. Every warp finds it for itself; all its lanes take part.

    Args:
        offsets: (L,) int32 ends.
        rows: Rows of the buffer.
        slot: Below `slot_count`.
        height: Rows of a tile.
    """
    lane = Int32(cute.arch.thread_idx()[0]) % _WARP
    count = Int32(offsets.shape[0])
    reached = Int32(0)
    for turn in cutlass.range(count // _WARP + 1):
        expert = turn * _WARP + lane
        begin = _begin(offsets, rows, expert)
        reached += Int32(expert <= count) & Int32(first_slot(begin, expert, height) <= slot)
    for step in cutlass.range_constexpr(5):
        reached += cute.arch.shuffle_sync_bfly(reached, 1 << step)
    expert = reached - 1
    begin = _begin(offsets, rows, expert)
    end = rows
    if expert < count:
        end = _begin(offsets, rows, expert + 1)
    first = begin + cutlass.max(slot - first_slot(begin, expert, height), Int32(0)) * height
    return RowTile(expert, first, end - first)


@cute.jit
def row_owner(offsets: cute.Tensor, row: Int32) -> Int32:
    """The expert of a row, L for one past the end. A whole warp asks for the same row."""
    lane = Int32(cute.arch.thread_idx()[0]) % _WARP
    count = Int32(offsets.shape[0])
    before = Int32(0)
    for turn in cutlass.range((count + (_WARP - 1)) // _WARP):
        expert = turn * _WARP + lane
        (end,) = load_global(offsets.iterator.toint() + Int64(expert) * 4, 4, Int32(expert < count))
        before += Int32(expert < count) & Int32(end <= row)
    for step in cutlass.range_constexpr(5):
        before += cute.arch.shuffle_sync_bfly(before, 1 << step)
    return before
