"""Which of a few tiles suits a grouped GEMM's shape on Hopper: a pure function, so that few kernels are ever compiled.

How the rows fall on the groups is known to the device only. Even groups are assumed, which fill their last tile half on
average: what uneven ones cost more, every tile pays alike.
"""

from __future__ import annotations

from dataclasses import replace

from cudnn_fe.core.gemm_spec import GemmTile

__all__ = ["choose_rows_tile", "choose_sum_tile"]

FEW_ROWS = 64  # of a group, up to which half a tile's rows would be idle


def _across(m: int, n: int, warpgroups: tuple[int, int], cluster_n: int, *, ping_pong: bool = False) -> GemmTile:
    return GemmTile(m, n, *warpgroups, ping_pong=ping_pong, cluster_m=1, cluster_n=cluster_n)


PING_PONG = _across(128, 128, (1, 1), 2, ping_pong=True)
PING_PONG_ALONE = _across(128, 128, (1, 1), 1, ping_pong=True)
WIDE = _across(128, 256, (2, 1), 2)
SHORT = _across(64, 128, (1, 1), 1)


def _ready(tile: GemmTile, multiprocessors: int) -> GemmTile:
    return replace(tile, persistent_ctas=multiprocessors, early_launch=True)


def choose_rows_tile(rows: int, groups: int, n: int, k: int, multiprocessors: int) -> GemmTile:
    """The tile for rows in groups.

    Args:
        rows: Of the buffer.
        groups: L.
        n: Rows of one group's weights.
        k: Summed extent.
        multiprocessors: Of the device.
    """
    del k
    if rows <= FEW_ROWS * groups:
        tile = SHORT
    elif -(-n // PING_PONG.n) % 2:
        tile = PING_PONG_ALONE if n <= 3 * PING_PONG.n else PING_PONG
    else:
        tile = PING_PONG
    return _ready(tile, multiprocessors)


def choose_sum_tile(rows: int, groups: int, m: int, n: int, multiprocessors: int) -> GemmTile:
    """The tile for sums over the rows of each group.

    Args:
        rows: Of the buffer: the summed extent of all groups together.
        groups: L.
        m: Rows of one group's result.
        n: Columns of one group's result.
        multiprocessors: Of the device.
    """
    del rows, groups, m, n
    return _ready(PING_PONG, multiprocessors)
