"""References that go row by row: each query has its own list of keys, or its own prefix of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_compat import is_jax_array

from cudnn_fe.attention.arrays import index_range, sweep, take
from cudnn_fe.attention.tiles import rows_per_step

__all__ = ["add_at", "list_softmax", "listed", "over_rows", "rows_at", "set_rows"]

# From the carry, the indices of some rows and whether each is there for the first time, to the carry and their results.
Body = Callable[[Any, Any, Any], tuple[Any, tuple[Any, ...]]]


def over_rows(xp: Any, like: Any, rows: int, row_elements: int, body: Body, carry: Any = ()) -> tuple[Any, Any]:
    """Runs ``body`` over all rows, a few at a time.

    Args:
        xp: Array namespace.
        like: An array where the rows are.
        rows: How many there are, at least one.
        row_elements: Elements of the largest intermediate of one row.
        body: ``body(carry, indices, fresh)``: results have the rows first. The last step repeats the last row, and
            says so in ``fresh``, for sums over rows.
        carry: The first carry.

    Returns:
        The last carry, and the results of all rows.
    """
    size = rows_per_step(like, rows, row_elements)
    offsets = index_range(xp, size, like)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        given = position * size + offsets
        return body(carry, xp.clip(given, 0, rows - 1), given < rows)

    carry, steps = sweep(xp, -(-rows // size), step, carry)
    return carry, tuple(xp.reshape(x, (x.shape[0] * size, *x.shape[2:]))[:rows] for x in steps)


def listed(xp: Any, ids: Any, lengths: Any, keys: int) -> Any:
    """Which slots of each row's list name a key: ids in range, and within the row's length where there is one."""
    valid = (ids >= 0) & (ids < keys)
    if lengths is None:
        return valid
    return valid & (index_range(xp, ids.shape[-1], ids) < lengths[..., None])


def rows_at(xp: Any, table: Any, ids: Any, valid: Any) -> Any:
    """Rows of ``table`` (N, D) by ids (M, K): (M, K, D), 0 where not valid; those are not read into anything."""
    found = xp.reshape(take(xp, table, xp.reshape(ids, (-1,)), 0), (*ids.shape, table.shape[1]))
    return xp.where(valid[..., None], found, xp.zeros_like(found))


def add_at(xp: Any, total: Any, ids: Any, rows: Any) -> Any:
    """``total`` (N, D) with rows (M, D) added at ids (M,), in a fixed order; it may be changed itself.

    Ids outside are moved to the nearest: the caller makes their rows 0.
    """
    ids = xp.clip(ids, 0, total.shape[0] - 1)
    if is_jax_array(total):
        return total.at[ids].add(rows)
    if hasattr(total, "index_add_"):
        # On CUDA index_add_ adds with atomics, index_put_ sorts first; on a CPU it is the other way round.
        return total.index_put_((ids,), rows, accumulate=True) if total.is_cuda else total.index_add_(0, ids, rows)
    import numpy as np  # total is its array

    np.add.at(total, ids, rows)
    return total


def set_rows(xp: Any, table: Any, ids: Any, rows: Any) -> Any:
    """A copy of ``table`` (N, ...) with rows (M, ...) at ids (M,); ids outside write nothing, and none comes twice."""
    inside = (ids >= 0) & (ids < table.shape[0])
    ids = xp.where(inside, ids, xp.full_like(ids, table.shape[0]))
    padded = xp.concat((table, xp.zeros_like(rows[:1])), axis=0) if rows.shape[0] else table + xp.zeros_like(table)
    if is_jax_array(table):
        padded = padded.at[ids].set(rows)
    else:
        padded[ids] = rows
    return padded[: table.shape[0]]


def list_softmax(xp: Any, s: Any, valid: Any) -> tuple[Any, Any, Any]:
    """``exp(s - max)`` over valid slots, that maximum, and the sum; 0, -inf and 0 where there is none."""
    shown = xp.where(valid, s, float("-inf"))
    top = xp.max(shown, axis=-1, keepdims=True)
    p = xp.exp(shown - xp.where(top == float("-inf"), xp.zeros_like(top), top))
    return p, top, xp.sum(p, axis=-1, keepdims=True)
