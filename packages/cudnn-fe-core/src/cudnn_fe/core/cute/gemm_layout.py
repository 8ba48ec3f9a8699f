"""How the Hopper GEMM sees its tensors: dense and batched, rows in groups, or summed dimension in groups.

A layout turns operands and outputs into what TMA addresses, makes the schedule of tiles, and says where each tile's
parts begin. Device tensors that a schedule reads come as `tables`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from cudnn_fe.core.cute.group_scheduler import GroupedTiles, group_bounds
from cudnn_fe.core.cute.staged import Staged
from cudnn_fe.core.cute.tile_scheduler import DenseTiles
from cudnn_fe.core.cute.tma import addressed_place, addressed_view, ragged_place, ragged_view, tma_view
from cudnn_fe.core.cute.zero_rows import zero_rows

__all__ = ["DenseGemm", "GemmLayout", "GroupTables", "RowGroups", "SumGroups", "TilePlace"]

Extents = tuple[Int32, Int32, Int32, Int32]
Rank = tuple[Int32, Int32, Int32]


class TilePlace(NamedTuple):
    """Where the parts of one output tile begin. Coordinates are elements of the TMA tensors.

    Attributes:
        a: A's first row and first K, then its outer coordinates.
        b: B's first row and first K, then its outer coordinates.
        out: The outputs' coordinates beyond row and column.
        out_row: The outputs' first row.
        n: The tile along N, in tiles.
        k_tiles: K tiles to sum, at least one.
        batch: Batch or group.
        row: First row in the whole tensor, as epilogues count.
        begin: Where the rows begin that the batch or group has, likewise.
        end: Where they end.
    """

    a: tuple[Any, ...]
    b: tuple[Any, ...]
    out: tuple[Any, ...]
    out_row: Int32
    n: Int32
    k_tiles: Int32
    batch: Int32
    row: Int32
    begin: Int32
    end: Int32


class GroupTables(NamedTuple):
    """What the schedules of groups read.

    Attributes:
        offsets: (L,) ends of the groups.
        tails: Outputs (M, N) whose rows behind the last group become zeros.
        addresses: (L,) where each group's matrix lies, if not in one tensor with the others.
        origin: The address that `addressed_view` starts from.
    """

    offsets: cute.Tensor
    tails: tuple[cute.Tensor, ...] = ()
    addresses: Any = ()
    origin: Any = ()


class GemmLayout(ABC):
    """What `GemmSm90` asks for. `tile` is (m, n, k) of a CTA, `cluster` the CTAs along M, N and the parts of K.

    Attributes:
        fills: Whether `fill` has something to do.
    """

    fills: bool = False

    @abstractmethod
    def extents(self, a: cute.Tensor, b: cute.Tensor, tables: Any) -> Extents:
        """M, N, K and the batches or groups."""

    @abstractmethod
    def views(self, a: cute.Tensor, b: cute.Tensor, majors: tuple[str, str]) -> tuple[cute.Tensor, cute.Tensor]:
        """A (M, K, ...) and B (N, K, ...) as TMA loads them."""

    @abstractmethod
    def store_view(self, out: cute.Tensor, major: str) -> cute.Tensor:
        """An output (M, N, ...) as TMA stores it."""

    @abstractmethod
    def most_tiles(self, extents: Extents, tile: tuple[int, int, int], cluster: tuple[int, int, int]) -> Int32:
        """No fewer cluster tiles than there are, known on the host."""

    @abstractmethod
    def schedule(self, extents: Extents, tables: Any, tile: tuple[int, int, int], cluster: Any, group_m: int) -> Any:
        """The order of tiles, made on the device; it offers ``total()``."""

    @abstractmethod
    def place(self, tiles: Any, linear: Int32, rank: Rank, tile: tuple[int, int, int]) -> TilePlace:
        """The tile at a linear index below the total, of the CTA with this rank in its cluster."""

    @abstractmethod
    def k_tiles(self, tiles: Any, linear: Int32) -> Int32:
        """K tiles of the tile at a linear index, which may lie past the total."""

    def fill(self, extents: Extents, tables: Any, worker: Int32, workers: Int32, threads: int) -> None:
        """What no tile writes, by `threads` threads of each of `workers` CTAs that have nothing else to do."""
        raise NotImplementedError


@dataclass(frozen=True)
class DenseGemm(GemmLayout):
    """A (M, K, L), B (N, K, L), outputs (M, N, L)."""

    def extents(self, a: cute.Tensor, b: cute.Tensor, tables: Any) -> Extents:
        """M, N, K and L."""
        return (a.shape[0], b.shape[0], a.shape[1], a.shape[2])

    def views(self, a: cute.Tensor, b: cute.Tensor, majors: tuple[str, str]) -> tuple[cute.Tensor, cute.Tensor]:
        """A and B with L outermost."""
        return tma_view(a, _contiguous(majors[0])), tma_view(b, _contiguous(majors[1]))

    def store_view(self, out: cute.Tensor, major: str) -> cute.Tensor:
        """An output with L outermost."""
        return tma_view(out, 1 if major == "n" else 0)

    def most_tiles(self, extents: Extents, tile: tuple[int, int, int], cluster: tuple[int, int, int]) -> Int32:
        """All tiles of all batches."""
        return DenseTiles.of(extents, tile, cluster, 1).total()

    def schedule(
        self, extents: Extents, tables: Any, tile: tuple[int, int, int], cluster: Any, group_m: int
    ) -> DenseTiles:
        """Batch by batch."""
        return DenseTiles.of(extents, tile, cluster, group_m)

    def place(self, tiles: DenseTiles, linear: Int32, rank: Rank, tile: tuple[int, int, int]) -> TilePlace:
        """A tile of one batch."""
        at = tiles.coordinate(linear, rank)
        row, k = at.m * tile[0], at.k_first * tile[2]
        a, b = (row, k, at.batch), (at.n * tile[1], k, at.batch)
        return TilePlace(a, b, (at.batch,), row, at.n, tiles.k_tiles, at.batch, row, Int32(0), row + tile[0])

    def k_tiles(self, tiles: DenseTiles, linear: Int32) -> Int32:
        """K's, the same everywhere."""
        return tiles.k_tiles


@dataclass(frozen=True)
class RowGroups(GemmLayout):
    """A (M, K) whose rows belong to groups, B (L, N, K) with one matrix a group, outputs (M, N).

    Loads of a group's last tile run on into the rows behind it, whose products are never stored: stores end exactly
    with the group. Clusters lie along N, where no tile is partly filled because of a group's end.

    Attributes:
        fills: Whether rows that belong to no group become zeros.
        addressed: Whether the groups' matrices lie at addresses; B is then (N, K), whose first element is the origin.
    """

    fills: bool = False
    addressed: bool = False

    def extents(self, a: cute.Tensor, b: cute.Tensor, tables: Any) -> Extents:
        """M, N, K and L."""
        return (a.shape[0], b.shape[0 if self.addressed else 1], a.shape[1], tables.offsets.shape[0])

    def views(self, a: cute.Tensor, b: cute.Tensor, majors: tuple[str, str]) -> tuple[cute.Tensor, cute.Tensor]:
        """A as it is, B as (N, K, L)."""
        rows, contiguous = tma_view(a, _contiguous(majors[0])), _contiguous(majors[1])
        if self.addressed:
            return rows, addressed_view(tma_view(b, contiguous))
        matrices = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
        return rows, tma_view(matrices, contiguous)

    def store_view(self, out: cute.Tensor, major: str) -> cute.Tensor:
        """An output whose rows end where a copy says."""
        return ragged_view(tma_view(out, 1), 0)

    def most_tiles(self, extents: Extents, tile: tuple[int, int, int], cluster: tuple[int, int, int]) -> Int32:
        """Whole tiles of M, and a partly filled one for each group."""
        return GroupedTiles.at_most(extents[3], extents[0], extents[1], tile[:2], cluster[1])

    def schedule(
        self, extents: Extents, tables: Any, tile: tuple[int, int, int], cluster: Any, group_m: int
    ) -> _RowTiles:
        """Group by group."""
        groups = GroupedTiles.of(tables.offsets, extents[0], extents[1], tile[:2], cluster[1], group_m)
        return _RowTiles(groups, cute.ceil_div(extents[2], tile[2]), tables.addresses, tables.origin)

    def place(self, tiles: _RowTiles, linear: Int32, rank: Rank, tile: tuple[int, int, int]) -> TilePlace:
        """A tile of one group."""
        at = tiles.groups.coordinate(linear, rank[1])
        out_row, out = ragged_place(at.begin, at.end, at.row)
        row, zero = at.begin + at.row, Int32(0)
        matrix: tuple[Int32, ...] = (at.group,)
        if self.addressed:
            matrix = addressed_place(tiles.addresses[at.group], tiles.origin)
        a, b = (row, zero), (at.n * tile[1], zero, *matrix)
        return TilePlace(a, b, out, out_row, at.n, tiles.k_tiles, at.group, row, at.begin, at.end)

    def k_tiles(self, tiles: _RowTiles, linear: Int32) -> Int32:
        """K's, the same everywhere."""
        return tiles.k_tiles

    def fill(self, extents: Extents, tables: Any, worker: Int32, workers: Int32, threads: int) -> None:
        """Zeros in the rows behind the last group."""
        _, end = group_bounds(tables.offsets, extents[3], extents[0])
        for out in tables.tails:
            zero_rows(out, end, worker, workers, cute.arch.thread_idx()[0] % threads, Int32(threads))


@dataclass(frozen=True)
class _RowTiles(Staged):
    groups: GroupedTiles
    k_tiles: Int32
    addresses: Any
    origin: Any

    def total(self) -> Int32:
        """Tiles of all groups."""
        return self.groups.total()


@dataclass(frozen=True)
class SumGroups(GemmLayout):
    """A (M, T) and B (N, T), whose T belongs to groups, outputs (L, M, N): each group's own sum.

    TMA brings zeros for what lies behind a group's end, so a step that only part of a group fills is exact whatever
    its neighbours hold. That needs operands whose T is not the contiguous mode. A group of no rows takes one step of
    zeros.

    Attributes:
        addressed: Whether the groups' outputs lie at addresses; an output is then (M, N), starting at the origin.
    """

    addressed: bool = False

    def extents(self, a: cute.Tensor, b: cute.Tensor, tables: Any) -> Extents:
        """M, N, T and L."""
        return (a.shape[0], b.shape[0], a.shape[1], tables.offsets.shape[0])

    def views(self, a: cute.Tensor, b: cute.Tensor, majors: tuple[str, str]) -> tuple[cute.Tensor, cute.Tensor]:
        """A and B whose T ends where a copy says."""
        return ragged_view(tma_view(a, 0), 1), ragged_view(tma_view(b, 0), 1)

    def store_view(self, out: cute.Tensor, major: str) -> cute.Tensor:
        """An output as (M, N, L)."""
        if self.addressed:
            return addressed_view(tma_view(out, 1))
        return tma_view(cute.make_tensor(out.iterator, cute.select(out.layout, mode=[1, 2, 0])), 1)

    def most_tiles(self, extents: Extents, tile: tuple[int, int, int], cluster: tuple[int, int, int]) -> Int32:
        """All tiles of all groups."""
        return DenseTiles.of(extents, tile, cluster, 1).total()

    def schedule(
        self, extents: Extents, tables: Any, tile: tuple[int, int, int], cluster: Any, group_m: int
    ) -> _SumTiles:
        """Group by group."""
        outputs = DenseTiles.of(extents, tile, cluster, group_m)
        return _SumTiles(outputs, tables.offsets, Int32(extents[2]), tables.addresses, tables.origin, tile[2])

    def place(self, tiles: _SumTiles, linear: Int32, rank: Rank, tile: tuple[int, int, int]) -> TilePlace:
        """A tile of one group's output."""
        at = tiles.outputs.coordinate(linear, rank)
        begin, end = group_bounds(tiles.offsets, at.batch, tiles.summed)
        k, outer = ragged_place(begin, end, Int32(0))
        row = at.m * tile[0]
        a, b = (row, k, *outer), (at.n * tile[1], k, *outer)
        matrix: tuple[Int32, ...] = (at.batch,)
        if self.addressed:
            matrix = addressed_place(tiles.addresses[at.batch], tiles.origin)
        return TilePlace(a, b, matrix, row, at.n, tiles.steps(begin, end), at.batch, row, Int32(0), row + tile[0])

    def k_tiles(self, tiles: _SumTiles, linear: Int32) -> Int32:
        """Those of the tile's group."""
        batch = linear // (tiles.outputs.clusters_m * tiles.outputs.clusters_n)
        return tiles.steps(*group_bounds(tiles.offsets, batch, tiles.summed))


@dataclass(frozen=True)
class _SumTiles(Staged):
    outputs: DenseTiles
    offsets: cute.Tensor
    summed: Int32
    addresses: Any
    origin: Any
    depth: int

    def total(self) -> Int32:
        """Tiles of all groups."""
        return self.outputs.total()

    def steps(self, begin: Int32, end: Int32) -> Int32:
        """K tiles of a group of rows."""
        return cutlass.max(cute.ceil_div(end - begin, self.depth), Int32(1))


def _contiguous(major: str) -> int:
    return 1 if major == "k" else 0
