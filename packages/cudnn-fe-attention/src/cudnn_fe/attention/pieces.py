"""The pieces of attention that every reference is made of: masked scores, softmax, values, and their derivatives.

Arrays are (batch, heads, tokens, channels) in the type that sums are taken in. Query heads come in groups of
neighbours that share one key head. Masks hold one bool per score and broadcast over the leading dims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_fe.attention.arrays import known_finite, product, round_through, take
from cudnn_fe.attention.tiles import Tile, Visible, over_keys, over_queries
from cudnn_fe.core.arrays import maximum_of

__all__ = [
    "attend",
    "attend_gradients",
    "by_key",
    "by_query",
    "largest_score_gradient",
    "log_sum_exp",
    "pull_back",
    "scores",
    "statistics",
    "weighted_values",
]


def scores(xp: Any, q: Any, k: Any) -> Any:
    """``q . k`` for every query and key: (B, Hq, M, N)."""
    batch, heads, rows, channels = q.shape
    folded = xp.reshape(q, (batch, k.shape[1], heads // k.shape[1] * rows, channels))
    return xp.reshape(product(xp, folded, xp.matrix_transpose(k)), (batch, heads, rows, k.shape[2]))


def _base(xp: Any, top: Any) -> Any:
    """What exponents are taken relative to: ``top``, and 0 where nothing is visible."""
    return xp.where(top == float("-inf"), xp.zeros_like(top), top)


def statistics(xp: Any, q: Any, k: Any, visible: Visible, scale: float) -> tuple[Any, Any]:
    """Each query's largest visible scaled score and ``sum exp(s - max)``, (B, Hq, M); -inf and 0 for empty rows."""

    def start(q: Any) -> tuple[Any, Any]:
        nothing = xp.zeros_like(xp.sum(q, axis=-1))
        return xp.full_like(nothing, float("-inf")), nothing

    def add(carry: Any, q: Any, tile: Tile) -> tuple[Any, Any]:
        top, total = carry
        s = tile.only(xp, scale * scores(xp, q, take(xp, k, tile.keys, 2)), float("-inf"))
        highest = xp.maximum(top, xp.max(s, axis=-1))
        base = _base(xp, highest)
        return highest, total * xp.exp(top - base) + xp.sum(xp.exp(s - base[..., None]), axis=-1)

    top, total = over_queries(xp, q, k.shape[2], visible, start, add)
    return top, total


def log_sum_exp(xp: Any, top: Any, total: Any) -> Any:
    """Natural log of the sum of exponentials, from the maximum and the sum relative to it; -inf for empty rows."""
    return top + xp.log(total)


def by_query(xp: Any, weights: Any, visible: Any, values: Any, *, signed: bool = False) -> Any:
    """``sum_n weights[m, n] values[n]`` over visible keys: (B, Hq, M, D). See `_product_of_visible`."""
    batch, heads, rows, keys = weights.shape
    shape = (batch, values.shape[1], heads // values.shape[1] * rows, keys)

    def seen() -> Any:
        return xp.reshape(xp.broadcast_to(visible, weights.shape), shape)

    result = _product_of_visible(xp, xp.reshape(weights, shape), seen, values, signed=signed)
    return xp.reshape(result, (batch, heads, rows, values.shape[3]))


def by_key(xp: Any, weights: Any, visible: Any, values: Any, key_heads: int) -> Any:
    """``sum_m weights[m, n] values[m]`` over the group's queries that see the key: (B, Hkv, N, D)."""
    batch, heads, rows, keys = weights.shape
    shape = (batch, key_heads, heads // key_heads * rows, keys)

    def seen() -> Any:
        return xp.matrix_transpose(xp.reshape(xp.broadcast_to(visible, weights.shape), shape))

    of_group = xp.reshape(values, (*shape[:3], values.shape[3]))
    return _product_of_visible(xp, xp.matrix_transpose(xp.reshape(weights, shape)), seen, of_group, signed=True)


def _product_of_visible(xp: Any, weights: Any, seen: Callable[[], Any], values: Any, *, signed: bool) -> Any:
    """``weights @ values``, where NaN and infinity in a value reach only the rows that see it.

    Weights of what is not seen are 0, and 0 times NaN would be NaN. With weights of either sign an infinity becomes
    NaN; with weights that are not negative it stays.
    """
    if known_finite(xp, values):
        return product(xp, weights, values)
    total = product(xp, weights, xp.where(xp.isfinite(values), values, xp.zeros_like(values)))
    marks = [~xp.isfinite(values)] if signed else [xp.isnan(values), values == float("inf"), values == float("-inf")]
    reach = product(xp, xp.astype(seen(), total.dtype), xp.astype(xp.concat(marks, axis=-1), total.dtype)) > 0
    width = values.shape[-1]
    for position, special in enumerate(("nan", "inf", "-inf")[: len(marks)]):
        hit = reach[..., position * width : (position + 1) * width]
        total = total + xp.where(hit, xp.full_like(total, float(special)), xp.zeros_like(total))
    return total


def weighted_values(
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    visible: Visible,
    weights: Callable[[Any, Tile], Any],
    *,
    signed: bool = False,
) -> Any:
    """``sum_n w_mn v_n`` over visible keys, (B, Hq, M, Dv), where ``w = weights(q . k, tile)``.

    ``signed`` says whether weights may be below 0.
    """

    def start(q: Any) -> tuple[Any]:
        nothing = xp.zeros_like(xp.sum(q, axis=-1, keepdims=True))
        return (xp.zeros_like(xp.broadcast_to(nothing, (*q.shape[:3], v.shape[3]))),)

    def add(carry: Any, q: Any, tile: Tile) -> tuple[Any]:
        x = scores(xp, q, take(xp, k, tile.keys, 2))
        w = tile.only(xp, weights(x, tile))
        return (carry[0] + by_query(xp, w, tile.seen, take(xp, v, tile.keys, 2), signed=signed),)

    return over_queries(xp, q, k.shape[2], visible, start, add)[0]


def pull_back(
    xp: Any,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    visible: Visible,
    weights: Callable[[Any, Any, Tile], tuple[Any, Any]],
    by_token: tuple[Any, Any, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """``(dS K, dS^T Q, W^T dO)`` over visible pairs, where ``W, dS = weights(q . k, do . v, tile)``.

    The shapes are those of Q, K and V. ``by_token`` is Q, dO and K as these three sums over tokens read them, where a
    format rounds them otherwise than for sums over channels.
    """
    if 0 in (*q.shape[:3], k.shape[2]):
        return xp.zeros_like(q), xp.zeros_like(k), xp.zeros_like(v)
    if by_token is not None:  # side by side, so that every tile cuts both
        q, do, k = (xp.concat(pair, axis=-1) for pair in zip((q, do, k), by_token, strict=True))
        v = xp.concat((v, xp.zeros_like(v)), axis=-1)

    def halves(x: Any) -> tuple[Any, Any]:
        return (x, x) if by_token is None else (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :])

    def gradients(q: Any, do: Any, k: Any, v: Any, tile: Tile) -> tuple[Any, Any, Any]:
        x = scores(xp, halves(q)[0], halves(k)[0])
        dp = scores(xp, halves(do)[0], halves(v)[0])
        w, ds = (tile.only(xp, y) for y in weights(x, dp, tile))
        found = (
            by_query(xp, ds, tile.seen, halves(k)[1], signed=True),
            by_key(xp, ds, tile.seen, halves(q)[1], k.shape[1]),
            by_key(xp, w, tile.seen, halves(do)[1], v.shape[1]),
        )
        return found if by_token is None else tuple(xp.concat((y, xp.zeros_like(y)), axis=-1) for y in found)

    results = over_keys(xp, q, do, k, v, visible, gradients)
    return halves(results[0])[0], halves(results[1])[0], halves(results[2])[0]


def attend(
    xp: Any, q: Any, k: Any, v: Any, visible: Visible, scale: float, io: str, *, lift: float = 1.0
) -> tuple[Any, Any, Any]:
    """Softmax attention. Statistics come first, so that roundings do not depend on how keys are cut.

    Args:
        xp: Array namespace.
        q: (B, Hq, M, D).
        k: (B, Hkv, N, D).
        v: (B, Hkv, N, Dv).
        visible: The mask.
        scale: Factor of the scores, applied before masking.
        io: Dtype that probabilities ``exp(s - max)`` are rounded to before they multiply values.
        lift: Power of two that probabilities are multiplied by while they are rounded, to use all of a narrow range.

    Returns:
        The output (B, Hq, M, Dv), the largest scaled score and the sum of exponentials relative to it (B, Hq, M).
    """
    batch, heads, rows, _ = q.shape
    if 0 in (batch, heads, rows, k.shape[2]):
        empty = xp.sum(xp.zeros_like(q), axis=-1)
        output = xp.zeros_like(xp.broadcast_to(empty[..., None], (batch, heads, rows, v.shape[3])))
        return output, xp.full_like(empty, float("-inf")), xp.zeros_like(empty)
    top, total = statistics(xp, q, k, visible, scale)
    base = _base(xp, top)

    def weights(x: Any, tile: Tile) -> Any:
        return round_through(lift * xp.exp(scale * x - take(xp, base, tile.queries, 2)[..., None]), io)

    sums = weighted_values(xp, q, k, v, visible, weights)
    below = total[..., None]
    return xp.where(below == 0, xp.zeros_like(sums), sums / (lift * below)), top, total


def attend_gradients(
    xp: Any,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    lse: Any,
    delta: Any,
    visible: Visible,
    scale: float,
    io: str,
    *,
    io_ds: str | None = None,
    lift: Any = 1.0,
    lift_ds: Any = 1.0,
    by_token: tuple[Any, Any, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)`` of `attend`.

    Args:
        xp: Array namespace.
        do: Gradient of the output (B, Hq, M, Dv).
        q: As in `attend`, and so are k and v.
        k: Likewise.
        v: Likewise.
        lse: Log-sum-exp of the forward (B, Hq, M).
        delta: ``sum_d O dO`` minus the log-sum-exp's own gradient (B, Hq, M).
        visible: The mask.
        scale: Factor of the scores.
        io: Dtype that P and dS are rounded to before they multiply.
        io_ds: That of dS, where it is another.
        lift: What P is multiplied by while it is rounded, to use all of a narrow range.
        lift_ds: Likewise dS.
        by_token: See `pull_back`.
    """
    base = _base(xp, lse)

    def weights(x: Any, dp: Any, tile: Tile) -> tuple[Any, Any]:
        p, ds = _gradient_weights(xp, x, dp, base, delta, scale, tile)
        return round_through(lift * p, io) / lift, round_through(lift_ds * ds, io_ds or io) / lift_ds

    dq, dk, dv = pull_back(xp, do, q, k, v, visible, weights, by_token)
    return scale * dq, scale * dk, dv


def _gradient_weights(xp: Any, x: Any, dp: Any, base: Any, delta: Any, scale: float, tile: Tile) -> tuple[Any, Any]:
    p = xp.exp(scale * x - take(xp, base, tile.queries, 2)[..., None])
    return p, p * (dp - take(xp, delta, tile.queries, 2)[..., None])


def largest_score_gradient(
    xp: Any, do: Any, q: Any, k: Any, v: Any, lse: Any, delta: Any, visible: Visible, scale: float
) -> Any:
    """The largest ``|dS|`` of `attend_gradients`, as an array (1,); 0 where nothing is visible."""
    nothing = xp.reshape(xp.sum(xp.zeros_like(q)), (1,))
    if 0 in (*q.shape[:3], k.shape[2]):
        return nothing
    base = _base(xp, lse)

    def start(q: Any) -> tuple[Any]:
        return (xp.zeros_like(xp.sum(q, axis=-1)),)

    def add(carry: Any, q: Any, tile: Tile) -> tuple[Any]:
        x = scores(xp, q, take(xp, k, tile.keys, 2))
        dp = scores(xp, take(xp, do, tile.queries, 2), take(xp, v, tile.keys, 2))
        ds = _gradient_weights(xp, x, dp, base, delta, scale, tile)[1]
        return (xp.maximum(carry[0], maximum_of(xp, xp.abs(tile.only(xp, ds)), -1)),)

    return xp.reshape(maximum_of(xp, over_queries(xp, q, k.shape[2], visible, start, add)[0]), (1,))
