"""Tiles of what queries see, gathered: for arrays that a host may look into, hidden pairs cost their mask alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from array_api_compat import device

from cudnn_fe.attention.arrays import astype, index_range, take

__all__ = ["ALIGNED", "Among", "Tile", "Visible", "sum_over_keys", "sum_over_pairs"]

# From query indices (M,) to a function from key indices (N,) to a mask that broadcasts to (batch, heads, M, N).
Visible = Callable[[Any], Callable[[Any], Any]]

ALIGNED = 16  # keys per tile are a multiple: groups that share a scale are never cut


@dataclass(frozen=True)
class Among:
    """What some queries see, where the keys that none of them does are cheaper to know than the mask.

    Attributes:
        mask: From key indices (N,) to the mask.
        near: To which keys there are (keys,) some query may see, and perhaps more.
    """

    mask: Callable[[Any], Any]
    near: Callable[[], Any]

    def __call__(self, keys: Any) -> Any:
        """The mask of those keys."""
        return self.mask(keys)


@dataclass(frozen=True)
class Tile:
    """Some queries and some keys.

    Attributes:
        queries: Indices of the queries (M,); those past the last one repeat it.
        keys: Indices of the keys (N,), likewise.
        seen: Which pairs are visible and exist; broadcasts to (batch, heads, M, N).
        whole: Whether all are known to be.
    """

    queries: Any
    keys: Any
    seen: Any
    whole: bool = False

    def only(self, xp: Any, x: Any, hidden: float = 0.0) -> Any:
        """``x`` (batch, heads, M, N) of visible pairs, and ``hidden`` for the others."""
        return x if self.whole else xp.where(self.seen, x, hidden)


class _Gathering:
    """Keys in ascending order, handed on as tiles of bounded width.

    Args:
        xp: Array namespace.
        queries: The tiles' queries.
        most: Keys of a tile at most.
        whole: Whether all pairs of the tiles are visible.
    """

    def __init__(self, xp: Any, queries: Any, most: int, *, whole: bool) -> None:
        self.xp, self.queries, self.most, self.whole = xp, queries, most, whole
        self.held: list[tuple[Any, Any]] = []
        self.count = 0

    def add(self, keys: Any, seen: Any, places: Any) -> Iterator[Tile]:
        """Takes what is at ``places`` of ``keys`` and of the mask; first hands on what it leaves no room for."""
        if self.count + len(places) > self.most:
            yield from self.rest()
        if len(places) < keys.shape[0]:
            places = self.xp.asarray(places, device=device(self.queries))
            keys, seen = take(self.xp, keys, places, 0), take(self.xp, seen, places, seen.ndim - 1)
        self.held.append((keys, seen))
        self.count += keys.shape[0]

    def rest(self) -> Iterator[Tile]:
        """Hands on what it holds."""
        if self.count:
            several = len(self.held) > 1
            parts = zip(*self.held, strict=True)
            keys, seen = (self.xp.concat(part, axis=-1) if several else part[0] for part in parts)
            yield Tile(self.queries, keys, seen, self.whole)
        self.held, self.count = [], 0


def _tiles(xp: Any, queries: Any, among: Any, key_count: int, most: int) -> Iterator[Tile]:
    """What the queries see, in groups of ``ALIGNED`` keys: tiles of those that all see whole, tiles of the others."""
    import numpy as np  # masks are small here, and its reductions fast

    gatherings = [_Gathering(xp, queries, most, whole=whole) for whole in (True, False)]
    ids = np.arange(key_count, dtype=np.int32)  # half the cost of int64 in masks
    if isinstance(among, Among):
        groups = np.logical_or.reduceat(np.asarray(among.near()), ids[::ALIGNED])
        ids = ids[np.repeat(groups, ALIGNED)[:key_count]]
    for first in range(0, ids.size, most):
        keys = xp.asarray(ids[first : first + most], device=device(queries))
        count = keys.shape[0]
        seen = among(keys)
        rows = np.asarray(seen).reshape(-1, count)
        starts = np.arange(0, count, ALIGNED)
        some, every = (ufunc.reduceat(ufunc.reduce(rows, axis=0), starts) for ufunc in (np.logical_or, np.logical_and))
        for gathering, groups in zip(gatherings, (every, some & ~every), strict=True):
            if groups.any():
                places = np.flatnonzero(np.repeat(groups, ALIGNED)[:count])
                yield from gathering.add(keys, seen[..., :1, :] if gathering.whole else seen, places)
    for gathering in gatherings:
        yield from gathering.rest()


def _steps(xp: Any, rows: int, down: int, like: Any) -> Iterator[Any]:
    """The indices of all rows, ``down`` at a time."""
    for first in range(0, rows, down):
        yield first + astype(index_range(xp, min(down, rows - first), like), "int32")


def _added(total: Any, keys: Any, rows: Any) -> Any:
    """``total`` (B, H, S, D) with rows at different keys, changed itself."""
    if hasattr(total, "index_add_"):
        return total.index_add_(2, keys, rows)
    total[:, :, keys] += rows
    return total


def sum_over_keys(
    xp: Any, q: Any, key_count: int, visible: Visible, start: Any, add: Any, extents: tuple[int, int]
) -> tuple[Any, ...]:
    """`tiles.over_queries`, with the queries and keys of a tile at most."""
    down, across = extents
    results = []
    for queries in _steps(xp, q.shape[2], down, q):
        q_step = take(xp, q, queries, 2)
        carry = start(q_step)
        for tile in _tiles(xp, queries, visible(queries), key_count, across):
            carry = add(carry, q_step, tile)
        results.append(carry)
    return tuple(xp.concat(parts, axis=2) for parts in zip(*results, strict=True))


def sum_over_pairs(
    xp: Any, q: Any, do: Any, k: Any, v: Any, visible: Visible, gradients: Any, extents: tuple[int, int]
) -> tuple[Any, Any, Any]:
    """`tiles.over_keys`, with the queries and keys of a tile at most."""
    down, across = extents
    dq, dk, dv = [], xp.zeros_like(k), xp.zeros_like(v)
    for queries in _steps(xp, q.shape[2], down, q):
        q_step, do_step = take(xp, q, queries, 2), take(xp, do, queries, 2)
        total = xp.zeros_like(q_step)
        for tile in _tiles(xp, queries, visible(queries), k.shape[2], across):
            keys = take(xp, k, tile.keys, 2), take(xp, v, tile.keys, 2)
            by_q, by_k, by_v = gradients(q_step, do_step, *keys, tile)
            total = total + by_q
            dk, dv = _added(dk, tile.keys, by_k), _added(dv, tile.keys, by_v)
        dq.append(total)
    return xp.concat(dq, axis=2), dk, dv
