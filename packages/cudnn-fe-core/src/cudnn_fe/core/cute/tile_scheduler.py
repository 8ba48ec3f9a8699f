"""Which output tile a CTA works on next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
from cutlass import Int32, cute

from cudnn_fe.core.cute.staged import Staged

__all__ = ["DenseTiles", "TileCoordinate", "banded"]


class TileCoordinate(NamedTuple):
    """An output tile, in units of CTA tiles, and the first K tile to sum for it."""

    m: Int32
    n: Int32
    batch: Int32
    k_first: Int32


def banded(within: Int32, rows: Int32, columns: Int32, group: int) -> tuple[Int32, Int32]:
    """The (row, column) of tile number `within` of a matrix of tiles.

    Bands of `group` rows are walked column by column, so that the tiles in flight at one time cover a nearly square
    piece of the output and share their operands in L2.
    """
    per_band = columns * group
    band = within // per_band
    within = within - band * per_band
    height = cutlass.min(rows - band * group, group)
    column = within // height
    return band * group + within - column * height, column


@dataclass(frozen=True)
class DenseTiles(Staged):
    """Persistent schedule of a batched dense GEMM.

    A scheduler offers `total` and `coordinate` (device values: a grouped one reads its offsets there) and `k_tiles`.
    The CTAs of a cluster walk together: all see the same linear index and differ only by their rank.

    Attributes:
        clusters_m: Cluster tiles along M.
        clusters_n: Cluster tiles along N.
        batches: Extent of L.
        k_tiles: K tiles that one CTA sums.
        cluster_shape: CTAs along M, along N, and along K (the parts that K is split into).
        group_m: Cluster rows walked together.
    """

    clusters_m: Int32
    clusters_n: Int32
    batches: Int32
    k_tiles: Int32
    cluster_shape: tuple[int, int, int]
    group_m: int

    @staticmethod
    def of(
        extents: tuple[Int32, Int32, Int32, Int32],
        tile: tuple[int, int, int],
        cluster_shape: tuple[int, int, int],
        group_m: int,
    ) -> DenseTiles:
        """The schedule for extents (M, N, K, L) and CTA tiles (m, n, k)."""
        m, n, k, batches = extents
        return DenseTiles(
            cute.ceil_div(m, tile[0] * cluster_shape[0]),
            cute.ceil_div(n, tile[1] * cluster_shape[1]),
            batches,
            cute.ceil_div(k, tile[2] * cluster_shape[2]),
            cluster_shape,
            group_m,
        )

    def total(self) -> Int32:
        """Cluster tiles of the whole problem."""
        return self.clusters_m * self.clusters_n * self.batches

    def coordinate(self, linear: Int32, rank: tuple[Int32, Int32, Int32]) -> TileCoordinate:
        """The tile of the CTA with this rank (M, N, K) in its cluster, at this linear index."""
        per_batch = self.clusters_m * self.clusters_n
        batch = linear // per_batch
        row, column = banded(linear - batch * per_batch, self.clusters_m, self.clusters_n, self.group_m)
        return TileCoordinate(
            row * self.cluster_shape[0] + rank[0],
            column * self.cluster_shape[1] + rank[1],
            batch,
            rank[2] * self.k_tiles,
        )
