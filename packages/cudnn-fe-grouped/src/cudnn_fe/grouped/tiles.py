"""Which of a few tiles suits a grouped GEMM's shape on Hopper: pure functions, so that few kernels are ever compiled.

How the rows fall on the groups is known to the device only; even groups are assumed. Measured on an H200 over the
expert shapes of four models, even and Zipf-distributed: tiles of 128 x 128 that two warpgroups take in turn, A shared
by two CTAs, are never more than 1 % behind others from 128 rows a group on. Where groups have few rows, reading the
weights is all that counts.
"""

from __future__ import annotations

from dataclasses import replace

from cudnn_fe.core.gemm_spec import GemmTile

__all__ = ["choose_rows_tile", "choose_sum_tile"]

FEW_ROWS = 64  # of a group, up to which half the rows of a tile of 128 would be idle
_SIDE = 128

PAIRED = GemmTile(_SIDE, _SIDE, 1, 1, ping_pong=True, cluster_m=1, cluster_n=2)
STACKED = replace(PAIRED, cluster_m=2, cluster_n=1)
ALONE = replace(PAIRED, cluster_n=1)
SHORT_WIDE = GemmTile(64, 256, 1, 2, cluster_m=1)
SHORT = GemmTile(64, _SIDE, 1, 1, cluster_m=1)


def _ready(tile: GemmTile, multiprocessors: int) -> GemmTile:
    return replace(tile, persistent_ctas=multiprocessors, early_launch=True)


def _odd(extent: int) -> bool:
    """Whether a CTA of every row or column of pairs would have next to nothing to do: one of at most four."""
    tiles = -(-extent // _SIDE)
    return tiles % 2 == 1 and tiles <= 3


def choose_rows_tile(rows: int, groups: int, n: int, multiprocessors: int) -> GemmTile:
    """The tile for rows in groups.

    Args:
        rows: Of the buffer.
        groups: L.
        n: Rows of one group's weights.
        multiprocessors: Of the device.
    """
    if rows <= FEW_ROWS * groups:
        wide = min(rows, groups) * -(-n // SHORT_WIDE.n) >= multiprocessors
        return _ready(SHORT_WIDE if wide else SHORT, multiprocessors)
    return _ready(ALONE if _odd(n) else PAIRED, multiprocessors)


def choose_sum_tile(m: int, n: int, multiprocessors: int) -> GemmTile:
    """The tile for sums over the rows of each group, whose number only changes how long every tile takes.

    Args:
        m: Rows of one group's result.
        n: Columns of one group's result.
        multiprocessors: Of the device.
    """
    tile = PAIRED if not _odd(n) else STACKED if not _odd(m) else ALONE
    return _ready(tile, multiprocessors)
