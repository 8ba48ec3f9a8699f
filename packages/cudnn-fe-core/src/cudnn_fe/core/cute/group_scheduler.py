"""Which tile a CTA works on next where the rows belong to groups, whose ends only the device knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
from cutlass import Int32, cute

from cudnn_fe.core.cute.staged import Staged
from cudnn_fe.core.cute.tile_scheduler import banded

__all__ = ["GroupTile", "GroupedTiles", "group_bounds"]

LANES = 32
MOST_GROUPS = LANES * LANES


class GroupTile(NamedTuple):
    """A tile of one group.

    Attributes:
        group: The group.
        begin: First row of the group.
        end: Last row of the group, exclusive.
        row: First row of the tile, counted from the group's first.
        n: The tile along N, in tiles.
    """

    group: Int32
    begin: Int32
    end: Int32
    row: Int32
    n: Int32


def group_bounds(offsets: cute.Tensor, group: Int32, rows: Int32) -> tuple[Int32, Int32]:
    """First row and end of a group, whatever the ends hold kept within 0 and `rows`; `group` may be any number."""
    last = Int32(offsets.shape[0]) - 1
    here = cutlass.max(cutlass.min(group, last), Int32(0))
    before = cutlass.max(here - 1, Int32(0))
    begin = cutlass.min(cutlass.max(offsets[before], Int32(0)), rows)
    begin = cutlass.select_(here == 0, Int32(0), begin)
    end = cutlass.min(cutlass.max(offsets[here], Int32(0)), rows)
    return begin, cutlass.max(begin, end)


@dataclass(frozen=True)
class GroupedTiles(Staged):
    """Persistent schedule over the tiles of up to 1024 groups of rows, of any sizes.

    The tiles of one group follow those of the one before it; a group's last tile may be partly filled, an empty group
    has none. Every warp finds its tiles by itself: each lane keeps how many tiles lie before its run of groups, and a
    look-up sums within one run. That is about 200 cycles for a tile, no shared memory, and no barrier.

    All lanes of a warp must make and ask it together.

    Attributes:
        offsets: (L,) end of each group's rows.
        rows: Rows of the whole tensor.
        clusters_n: Cluster tiles along N.
        run: Groups in one lane's run.
        before: Row tiles before this lane's run.
        row_tiles: Row tiles of all groups.
        tile_rows: Rows of a cluster's tile.
        cluster_n: CTAs along N.
        group_m: Tiles of rows walked together.
    """

    offsets: cute.Tensor
    rows: Int32
    clusters_n: Int32
    run: Int32
    before: Int32
    row_tiles: Int32
    tile_rows: int
    cluster_n: int
    group_m: int

    @staticmethod
    def of(
        offsets: cute.Tensor, rows: Int32, columns: Int32, tile: tuple[int, int], cluster_n: int, group_m: int
    ) -> GroupedTiles:
        """The schedule for (L,) ends, extents (M, N), and CTA tiles (m, n) of which `cluster_n` lie side by side."""
        clusters_n = cute.ceil_div(columns, tile[1] * cluster_n)
        run = (Int32(offsets.shape[0]) + (LANES - 1)) // LANES
        mine, total = _tiles_of_runs(offsets, rows, run, tile[0])
        return GroupedTiles(
            offsets, rows, clusters_n, run, total - mine, _last_lane(total), tile[0], cluster_n, group_m
        )

    @staticmethod
    def at_most(groups: Int32, rows: Int32, columns: Int32, tile: tuple[int, int], cluster_n: int) -> Int32:
        """No fewer cluster tiles than any offsets make."""
        clusters_n = cute.ceil_div(columns, tile[1] * cluster_n)
        return (rows // tile[0] + cutlass.min(groups, rows)) * clusters_n

    def total(self) -> Int32:
        """Cluster tiles of all groups."""
        return self.row_tiles * self.clusters_n

    def coordinate(self, linear: Int32, rank: Int32) -> GroupTile:
        """The tile of the CTA with this rank along N in its cluster, at this linear index below `total`."""
        slot = linear // self.clusters_n
        lane = cute.arch.lane_idx()
        chosen = cute.arch.popc(cute.arch.vote_ballot_sync(self.before <= slot)) - 1
        before = cute.arch.shuffle_sync(self.before, chosen)
        first_group = chosen * self.run
        begin, end = group_bounds(self.offsets, first_group + lane, self.rows)
        in_run = cutlass.min(self.run, Int32(self.offsets.shape[0]) - first_group)
        tiles = cutlass.select_(lane < in_run, cute.ceil_div(end - begin, self.tile_rows), Int32(0))
        through = _inclusive_sum(tiles)
        found = cute.arch.popc(cute.arch.vote_ballot_sync(before + through <= slot))
        begin, end, tiles = (cute.arch.shuffle_sync(value, found) for value in (begin, end, tiles))
        first = before + cute.arch.shuffle_sync(through, found) - tiles
        row, column = banded(linear - first * self.clusters_n, tiles, self.clusters_n, self.group_m)
        return GroupTile(first_group + found, begin, end, row * self.tile_rows, column * self.cluster_n + rank)


@cute.jit
def _tiles_of_runs(
    offsets: cute.Tensor, rows: Int32, run: Int32, tile_rows: cutlass.Constexpr[int]
) -> tuple[Int32, Int32]:
    """Row tiles of this lane's run of groups, and of all runs up to it."""
    first = cute.arch.lane_idx() * run
    tiles = Int32(0)
    for i in cutlass.range(run, unroll=1):
        group = first + i
        begin, end = group_bounds(offsets, group, rows)
        count = cute.ceil_div(end - begin, tile_rows)
        tiles += cutlass.select_(group < Int32(offsets.shape[0]), count, Int32(0))
    return tiles, _inclusive_sum(tiles)


def _inclusive_sum(value: Int32) -> Int32:
    """The sum over this lane and the lanes before it."""
    lane = cute.arch.lane_idx()
    for distance in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(value, distance)
        value = value + cutlass.select_(lane >= distance, other, Int32(0))
    return value


def _last_lane(value: Int32) -> Int32:
    return cute.arch.shuffle_sync(value, LANES - 1)
