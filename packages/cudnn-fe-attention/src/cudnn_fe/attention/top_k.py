"""The best of a row, with an exact order among equals."""

from __future__ import annotations

from typing import Any

__all__ = ["along_last", "best_first"]


def along_last(xp: Any, x: Any, indices: Any) -> Any:
    """``x[..., indices[..., i]]`` for indices that broadcast over the leading dims."""
    shape = (*x.shape[:-1], indices.shape[-1])
    return xp.take_along_axis(x, xp.broadcast_to(indices, shape), axis=-1)


def best_first(xp: Any, scores: Any, valid: Any, count: int) -> tuple[Any, Any]:
    """The ``count`` largest valid scores of each row, and where they stand; -inf and -1 where there are fewer.

    Of equal scores the earlier comes first. NaN comes last.
    """
    width = scores.shape[-1]
    low = xp.full_like(scores, float("-inf"))
    if width < count:
        filler = xp.zeros_like(xp.broadcast_to(low[..., :1], (*low.shape[:-1], count - width)))
        scores, valid = xp.concat((scores, filler), axis=-1), xp.concat((valid, filler > 0), axis=-1)
    # Two stable sorts: by score, then those that count before those that do not.
    order = xp.argsort(-scores, axis=-1, stable=True)
    counted = along_last(xp, valid, order)
    order = along_last(xp, order, xp.argsort(xp.astype(~counted, xp.int32), axis=-1, stable=True))[..., :count]
    kept, values = along_last(xp, valid, order), along_last(xp, scores, order)
    return (
        xp.where(kept, values, xp.full_like(values, float("-inf"))),
        xp.where(kept, xp.astype(order, xp.int32), xp.full_like(xp.astype(order, xp.int32), -1)),
    )
