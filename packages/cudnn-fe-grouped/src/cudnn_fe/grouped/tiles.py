"""Which of a few tiles suits a grouped GEMM's shape on Hopper: pure functions, so that few kernels are ever compiled.

How the rows fall on the groups is known to the device only. Measured on an H200 over the expert shapes of four models,
1 to 2048 rows a group, even and Zipf-distributed. Tiles of 128 x 128 that two warpgroups take in turn, A shared by two
CTAs, hide their epilogues, which counts from 96 rows a group on where K is short. Where it is long, tiles of 128 x 256
win by 4 to 5 % while the card is cool, for the others read more than shared memory delivers then, and lose 1 to 4 %
when it is hot. Up to 64 rows a group, reading the weights is what counts, and tiles of 64 rows win by 1 to 10 %; where
one or two rows are usual, wide ones do by as much again.
"""

from __future__ import annotations

from dataclasses import replace

from cudnn_fe.core.gemm_spec import GemmTile

__all__ = ["choose_rows_tile", "choose_sum_tile"]

FEW_ROWS = 32  # of a group on average: with 64, uneven routing gives some far more, and short tiles then lose by half
ONE_ROW = 4  # of a group on average, where hardly any has a second tile
MANY_ROWS = 256  # of a group on average, and
LONG_SUM = 4096  # of K, from which broad tiles' epilogues cost less than what they save
_SIDE = 128

PAIRED = GemmTile(_SIDE, _SIDE, 1, 1, ping_pong=True, cluster_m=1, cluster_n=2)
BROAD = GemmTile(_SIDE, 256, 2, 1, cluster_m=1, cluster_n=2, group_m=16)  # a group's rows pass while weights stay in L2
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


def choose_rows_tile(rows: int, groups: int, n: int, k: int, multiprocessors: int, *, reads: bool = False) -> GemmTile:
    """The tile for rows in groups.

    Args:
        rows: Of the buffer.
        groups: L.
        n: Rows of one group's weights.
        k: Summed extent.
        multiprocessors: Of the device.
        reads: Whether the epilogue reads tensors, which leaves no room for broad tiles.
    """
    if not reads and k >= LONG_SUM and rows >= MANY_ROWS * groups and n >= 4 * BROAD.n:
        return _ready(BROAD, multiprocessors)
    if rows <= FEW_ROWS * groups:
        wide = rows <= ONE_ROW * groups and min(rows, groups) * -(-n // SHORT_WIDE.n) >= multiprocessors
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
