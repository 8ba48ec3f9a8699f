"""Bands around the diagonal, of padded and of packed sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.arrays import every, index_range, take
from cudnn_fe.attention.sequences import Rows, rows_of, same_sequence
from cudnn_fe.attention.tiles import Visible

__all__ = ["Band", "places", "within"]


@dataclass(frozen=True)
class Band:
    """Which keys a query sees by their places.

    Attributes:
        before: Keys before the diagonal; None is all.
        after: Keys after it; None is all.
        bottom_right: Whether the diagonal ends in the last query and key, instead of starting in the first ones.
    """

    before: int | None
    after: int | None
    bottom_right: bool = False


def places(xp: Any, x: Any, lengths: Any, offsets: Any) -> Rows:
    """Where each row of (B, H, S, D) stands: one set for all batches (S,), or one for each (B, 1, S).

    Args:
        xp: Array namespace.
        x: The operand.
        lengths: Rows of each sequence, clamped to those that there are; None is all.
        offsets: First row of each packed sequence, all of them in one batch; None: every batch is one.
    """
    count = x.shape[2]
    if offsets is not None:
        return rows_of(xp, offsets, count, None if lengths is None else xp.clip(lengths, 0, count))
    row = index_range(xp, count, x)
    if lengths is None:
        return Rows(xp.zeros_like(row), row, xp.full_like(row, count), row < count)
    length = xp.clip(lengths, 0, count)[:, None, None]
    place = xp.broadcast_to(row, (length.shape[0], 1, count))
    return Rows(xp.zeros_like(place), place, xp.broadcast_to(length, place.shape), place < length)


def within(xp: Any, band: Band, of_queries: Rows, of_keys: Rows, alive: Any = None) -> Visible:
    """The mask: keys of the query's sequence, inside the band. ``alive`` (B, H, S) says which queries see at all."""
    packed = of_queries.position.ndim == 1 and of_keys.position.ndim == 1

    def visible(queries: Any) -> Any:
        at = _at(xp, of_queries, queries)
        live = [] if alive is None else [take(xp, alive, queries, 2)[..., None]]

        def among(keys: Any) -> Any:
            of = _at(xp, of_keys, keys)
            seen = [*live, same_sequence(at, of) if packed else of.valid[..., None, :]]
            row, column = at.position[..., None], of.position[..., None, :]
            if band.bottom_right:
                # A query's own sequence has as many keys as each key of it says; others are hidden already.
                row = row + of.length[..., None, :] - at.length[..., None]
            if band.after is not None:
                seen.append(column <= row + band.after)
            if band.before is not None:
                seen.append(column >= row - band.before)
            return every(xp, tuple(seen))

        return among

    return visible


def _at(xp: Any, rows: Rows, indices: Any) -> Rows:
    return Rows(*(take(xp, x, indices, x.ndim - 1) for x in (rows.sequence, rows.position, rows.length, rows.valid)))
