"""The best of a row, with an exact order among equals."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import index_range, readable
from cudnn_fe.core.codecs.bits import float32_bits

__all__ = ["along_last", "best_first", "float_order", "in_order"]


def along_last(xp: Any, x: Any, indices: Any) -> Any:
    """``x[..., indices[..., i]]`` for indices that broadcast over the leading dims."""
    shape = (*x.shape[:-1], indices.shape[-1])
    if xp.__name__ != "jax.numpy":
        indices = xp.astype(indices, xp.int64)  # torch takes no other
    return xp.take_along_axis(x, xp.broadcast_to(indices, shape), axis=-1)


def float_order(xp: Any, x: Any) -> Any:
    """Integers in the order of the floats: +0 above -0, NaN beyond infinity on the side of its sign."""
    wide = x.view(xp.int64) if x.dtype == xp.float64 else float32_bits(xp, x)
    largest = 2**63 - 1 if x.dtype == xp.float64 else 2**31 - 1
    return xp.where(wide < 0, wide ^ largest, wide)


def best_first(xp: Any, scores: Any, valid: Any, count: int, order: Any = None) -> tuple[Any, Any]:
    """The ``count`` largest valid scores of each row, and where they stand; -inf and -1 where there are fewer.

    Of equal scores the earlier comes first. NaN comes last.

    Args:
        xp: Array namespace.
        scores: (..., N).
        valid: Which count.
        count: How many are wanted.
        order: What is largest, where it is not the score: integers as of `float_order`.
    """
    width = scores.shape[-1]
    if width < count:
        filler = xp.zeros_like(xp.broadcast_to(scores[..., :1], (*scores.shape[:-1], count - width)))
        scores, valid = xp.concat((scores, filler), axis=-1), xp.concat((valid, filler > 0), axis=-1)
        if order is not None:
            order = xp.concat((order, xp.astype(filler, order.dtype)), axis=-1)
    if order is None:
        known = float_order(xp, scores + 0.0)  # one zero
        order = xp.where(xp.isnan(scores), xp.full_like(known, -_largest(xp, known)), known)
    # What does not count is beyond all that does; only the two lowest NaN become equals.
    last = _largest(xp, order)
    keys = xp.where(valid, xp.clip(~order, max=last - 1), xp.full_like(order, last))
    ranks = _smallest(xp, keys, count)
    kept, values = along_last(xp, valid, ranks), along_last(xp, scores, ranks)
    return (
        xp.where(kept, values, xp.full_like(values, float("-inf"))),
        xp.where(kept, xp.astype(ranks, xp.int32), xp.full_like(xp.astype(ranks, xp.int32), -1)),
    )


def _largest(xp: Any, integers: Any) -> int:
    return 2**63 - 1 if integers.dtype == xp.int64 else 2**31 - 1


def _smallest(xp: Any, keys: Any, count: int) -> Any:
    """Where the ``count`` smallest of each row stand, in order; of equal ones the earlier comes first."""
    if keys.dtype == xp.int64 or not readable(xp, keys):
        return xp.argsort(keys, axis=-1, stable=True)[..., :count]
    # Sorting all takes ten times as long as choosing, which knows no order among equals: here none are.
    width = keys.shape[-1]
    apart = xp.astype(keys, xp.int64) * width + index_range(xp, width, keys)
    if hasattr(apart, "topk"):
        return apart.topk(count, dim=-1, largest=False).values % width
    apart.partition(count - 1, axis=-1)
    return xp.sort(apart[..., :count], axis=-1) % width


def in_order(xp: Any, indices: Any) -> Any:
    """The indices ascending, -1 last."""
    last = xp.where(indices < 0, xp.full_like(indices, 2**31 - 1), indices)
    ascending = xp.sort(last, axis=-1)
    return xp.where(ascending == 2**31 - 1, xp.full_like(ascending, -1), ascending)
