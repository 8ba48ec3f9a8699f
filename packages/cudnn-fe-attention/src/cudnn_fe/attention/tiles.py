"""Scores, a tile of queries and keys at a time: what a reference holds in memory does not grow with the sequence."""

from __future__ import annotations

from math import isqrt
from typing import Any

from cudnn_fe.attention.arrays import astype, every, index_range, readable, sweep, take, when
from cudnn_fe.attention.gathered import ALIGNED, Tile, Visible, sum_over_keys, sum_over_pairs

__all__ = ["Tile", "Visible", "join_rows", "over_keys", "over_queries", "rows_per_step"]

_ON_HOST, _ON_GPU = 1 << 20, 1 << 24  # scores held at a time: what stays in a CPU's cache; what keeps a GPU busy
_FEW = 128  # queries of a gathered tile: together they see little more than each, and products are still fast


def _area(like: Any) -> int:
    return _ON_GPU if getattr(like, "is_cuda", False) else _ON_HOST


def rows_per_step(like: Any, rows: int, row_elements: int) -> int:
    """Rows per step such that a step stays small, of ``row_elements`` each; at least one."""
    return max(1, min(rows, _area(like) // max(row_elements, 1)))


def _extents(like: Any, outer: int, rows: int, keys: int, *, gathered: bool) -> tuple[int, int]:
    """Queries and keys of a tile: about a square, wider where there are few queries or what they see is gathered."""
    area = max(_area(like) // max(outer, 1), 1)
    side = isqrt(area)
    if gathered:
        side = max(side, area // _FEW)
    across = min(keys, max(side // ALIGNED, 1) * ALIGNED)
    down = max(1, min(rows, area // across))
    return down, min(keys, max(across, area // down // ALIGNED * ALIGNED))


def _indices(xp: Any, position: Any, size: int, count: int, like: Any) -> tuple[Any, Any]:
    """The indices of a step, moved to the last one where they pass it, and whether they did not."""
    given = position * size + astype(index_range(xp, size, like), "int32")  # half the cost of masks on a CPU
    return xp.clip(given, 0, count - 1), given < count


def over_queries(xp: Any, q: Any, key_count: int, visible: Visible, start: Any, add: Any) -> Any:
    """For every query, what ``add`` makes of the tiles of all keys, in order.

    Args:
        xp: Array namespace.
        q: (B, H, M, D).
        key_count: Keys that there are.
        visible: The mask.
        start: ``start(q)``: a tuple of arrays (B, H, M, ...) for some queries before any key.
        add: ``add(carry, q, tile)``: the tuple with the tile's keys. Tiles that nothing is visible in may be skipped.

    Returns:
        The tuple of all queries.
    """
    batch, heads, rows, _ = q.shape
    gathered = readable(xp, q)
    down, across = _extents(q, batch * heads, rows, key_count, gathered=gathered)
    if gathered:
        return sum_over_keys(xp, q, key_count, visible, start, add, (down, across))
    several = down < rows or across < key_count

    def of_queries(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        queries, _ = _indices(xp, position, down, rows, q)
        q_step, shown = take(xp, q, queries, 2), visible(queries)

        def of_keys(carry: Any, position: Any) -> tuple[Any, tuple[()]]:
            keys, exist = _indices(xp, position, across, key_count, q)
            tile = Tile(queries, keys, every(xp, (shown(keys), exist)))
            return when(xp, several, tile.seen, lambda carry: add(carry, q_step, tile), carry), ()

        return carry, sweep(xp, -(-key_count // across), of_keys, start(q_step))[0]

    steps = sweep(xp, -(-rows // down), of_queries, ())[1]
    return tuple(join_rows(xp, x, rows) for x in steps)


def over_keys(xp: Any, q: Any, do: Any, k: Any, v: Any, visible: Visible, gradients: Any) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)``: sums over all tiles.

    Args:
        xp: Array namespace.
        q: (B, Hq, M, D).
        do: (B, Hq, M, Dv).
        k: (B, Hkv, N, D).
        v: (B, Hkv, N, Dv).
        visible: The mask.
        gradients: ``gradients(q, do, k, v, tile)``: what the tile adds to dQ, dK and dV.
    """
    batch, heads, rows, _ = q.shape
    key_count = k.shape[2]
    gathered = readable(xp, q)
    down, across = _extents(q, batch * heads, rows, key_count, gathered=gathered)
    if gathered:
        return sum_over_pairs(xp, q, do, k, v, visible, gradients, (down, across))
    several = down < rows or across < key_count

    def of_keys(dq: Any, position: Any) -> tuple[Any, tuple[Any, Any]]:
        keys, exist = _indices(xp, position, across, key_count, q)
        k_step, v_step = take(xp, k, keys, 2), take(xp, v, keys, 2)

        def of_queries(carry: Any, position: Any) -> tuple[Any, tuple[Any]]:
            queries, alive = _indices(xp, position, down, rows, q)
            tile = Tile(queries, keys, every(xp, (visible(queries)(keys), exist, alive[:, None])))
            q_step, do_step = take(xp, q, queries, 2), take(xp, do, queries, 2)

            def add(carry: Any) -> tuple[Any, Any, Any]:
                by_q, by_k, by_v = gradients(q_step, do_step, k_step, v_step, tile)
                return carry[0] + by_k, carry[1] + by_v, by_q

            dk, dv, dq_step = when(xp, several, tile.seen, add, (*carry, xp.zeros_like(q_step)))
            return (dk, dv), (dq_step,)

        nothing = xp.zeros_like(k_step), xp.zeros_like(v_step)
        grads, (steps,) = sweep(xp, -(-rows // down), of_queries, nothing)
        return dq + join_rows(xp, steps, rows), grads

    dq, (dk, dv) = sweep(xp, -(-key_count // across), of_keys, xp.zeros_like(q))
    return dq, join_rows(xp, dk, key_count), join_rows(xp, dv, key_count)


def join_rows(xp: Any, steps: Any, rows: int) -> Any:
    """Steps of rows (steps, B, H, M, ...) as (B, H, rows, ...), without what fills the last step."""
    dims = (1, 2, 0, *range(3, steps.ndim))
    turned = xp.permute_dims(steps, dims)
    batch, heads, count, size = turned.shape[:4]
    return xp.reshape(turned, (batch, heads, count * size, *turned.shape[4:]))[:, :, :rows]
