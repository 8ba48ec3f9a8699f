"""The pieces of attention that every reference is made of: masked scores, softmax, values, and their derivatives.

Arrays are (batch, heads, tokens, channels) in the type that sums are taken in. Query heads come in groups of
neighbours that share one key head. Masks hold one bool per score and broadcast over the leading dims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_fe.attention.arrays import every, index_range, product, round_through, sweep, take

__all__ = [
    "Visible",
    "attend",
    "attend_gradients",
    "by_key",
    "by_query",
    "join_rows",
    "log_sum_exp",
    "rows_per_step",
    "scores",
    "softmax",
]

Visible = Callable[[Any], Any]  # from query indices (M,) to a mask that broadcasts to (batch, heads, M, keys)

_STEP_ELEMENTS = 1 << 22  # scores held at a time: 16 MiB in float32, whatever the sequence length


def rows_per_step(rows: int, heads: int, keys: int) -> int:
    """Queries per step such that a step's scores stay small; at least one."""
    return max(1, min(rows, _STEP_ELEMENTS // max(heads * keys, 1)))


def scores(xp: Any, q: Any, k: Any) -> Any:
    """``q . k`` for every query and key: (B, Hq, M, N)."""
    batch, heads, rows, channels = q.shape
    folded = xp.reshape(q, (batch, k.shape[1], heads // k.shape[1] * rows, channels))
    return xp.reshape(product(xp, folded, xp.matrix_transpose(k)), (batch, heads, rows, k.shape[2]))


def softmax(xp: Any, s: Any, visible: Any) -> tuple[Any, Any, Any]:
    """``exp(s - max)`` over the visible keys, that maximum, and the sum; 0, -inf and 0 where nothing is visible."""
    shown = xp.where(visible, s, float("-inf"))
    top = xp.max(shown, axis=-1, keepdims=True)
    p = xp.exp(shown - xp.where(top == float("-inf"), xp.zeros_like(top), top))
    return p, top, xp.sum(p, axis=-1, keepdims=True)


def log_sum_exp(xp: Any, top: Any, total: Any) -> Any:
    """Natural log of the sum of exponentials, from the maximum and the sum relative to it; -inf for empty rows."""
    return top + xp.log(total)


def by_query(xp: Any, weights: Any, visible: Any, values: Any, *, signed: bool = False) -> Any:
    """``sum_n weights[m, n] values[n]`` over visible keys: (B, Hq, M, D). See `_product_of_visible`."""
    batch, heads, rows, keys = weights.shape
    shape = (batch, values.shape[1], heads // values.shape[1] * rows, keys)
    seen = xp.reshape(xp.broadcast_to(visible, weights.shape), shape)
    result = _product_of_visible(xp, xp.reshape(weights, shape), seen, values, signed=signed)
    return xp.reshape(result, (batch, heads, rows, values.shape[3]))


def by_key(xp: Any, weights: Any, visible: Any, values: Any, key_heads: int) -> Any:
    """``sum_m weights[m, n] values[m]`` over the group's queries that see the key: (B, Hkv, N, D)."""
    batch, heads, rows, keys = weights.shape
    folded = heads // key_heads * rows
    seen = xp.reshape(xp.broadcast_to(visible, weights.shape), (batch, key_heads, folded, keys))
    turned = xp.matrix_transpose(xp.reshape(weights, (batch, key_heads, folded, keys)))
    of_group = xp.reshape(values, (batch, key_heads, folded, values.shape[3]))
    return _product_of_visible(xp, turned, xp.matrix_transpose(seen), of_group, signed=True)


def _product_of_visible(xp: Any, weights: Any, seen: Any, values: Any, *, signed: bool) -> Any:
    """``weights @ values``, where NaN and infinity in a value reach only the rows that see it.

    Weights of what is not seen are 0, and 0 times NaN would be NaN. With weights of either sign an infinity becomes
    NaN; with weights that are not negative it stays.
    """
    if _finite_on_host(xp, values):
        return product(xp, weights, values)
    total = product(xp, weights, xp.where(xp.isfinite(values), values, xp.zeros_like(values)))
    marks = [~xp.isfinite(values)] if signed else [xp.isnan(values), values == float("inf"), values == float("-inf")]
    reach = product(xp, xp.astype(seen, total.dtype), xp.astype(xp.concat(marks, axis=-1), total.dtype)) > 0
    width = values.shape[-1]
    for position, special in enumerate(("nan", "inf", "-inf")[: len(marks)]):
        hit = reach[..., position * width : (position + 1) * width]
        total = total + xp.where(hit, xp.full_like(total, float(special)), xp.zeros_like(total))
    return total


def _finite_on_host(xp: Any, values: Any) -> bool:
    """Whether all values are known to be finite: asked only where the answer needs no synchronisation."""
    if xp.__name__ == "jax.numpy" or getattr(values, "is_cuda", False):
        return False
    return bool(xp.all(xp.isfinite(values)))


def join_rows(xp: Any, steps: Any, rows: int) -> Any:
    """Steps of queries (steps, B, H, M, ...) as (B, H, rows, ...), without what fills the last step."""
    dims = (1, 2, 0, *range(3, steps.ndim))
    turned = xp.permute_dims(steps, dims)
    batch, heads, count, size = turned.shape[:4]
    return xp.reshape(turned, (batch, heads, count * size, *turned.shape[4:]))[:, :, :rows]


def attend(
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    visible: Visible,
    scale: float,
    io: str,
    *,
    block: int | None = None,
    lift: float = 1.0,
) -> tuple[Any, Any, Any]:
    """Softmax attention, a step of queries at a time.

    Args:
        xp: Array namespace.
        q: (B, Hq, M, D).
        k: (B, Hkv, N, D).
        v: (B, Hkv, N, Dv).
        visible: The mask of given queries.
        scale: Factor of the scores, applied before masking.
        io: Dtype that probabilities are rounded to before they multiply values.
        block: Queries per step; None chooses.
        lift: Power of two that probabilities are multiplied by while they are rounded, to use all of a narrow range.

    Returns:
        The output (B, Hq, M, Dv), the largest scaled score and the sum of exponentials relative to it (B, Hq, M).
    """
    batch, heads, rows, _ = q.shape
    if 0 in (batch, heads, rows, k.shape[2]):
        empty = xp.sum(xp.zeros_like(q), axis=-1)
        output = xp.zeros_like(xp.broadcast_to(empty[..., None], (batch, heads, rows, v.shape[3])))
        return output, xp.full_like(empty, float("-inf")), xp.zeros_like(empty)
    size = block or rows_per_step(rows, batch * heads, k.shape[2])
    offsets = index_range(xp, size, q)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        queries = xp.clip(position * size + offsets, 0, rows - 1)
        seen = visible(queries)
        p, top, total = softmax(xp, scale * scores(xp, take(xp, q, queries, 2), k), seen)
        sums = by_query(xp, round_through(lift * p, io), seen, v)
        output = xp.where(total == 0, xp.zeros_like(sums), sums / (lift * total))
        return carry, (output, top[..., 0], total[..., 0])

    _, (output, top, total) = sweep(xp, -(-rows // size), step, ())
    return join_rows(xp, output, rows), join_rows(xp, top, rows), join_rows(xp, total, rows)


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
    block: int | None = None,
) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)`` of `attend`, a step of queries at a time.

    Args:
        xp: Array namespace.
        do: Gradient of the output (B, Hq, M, Dv).
        q: As in `attend`, and so are k and v.
        k: Likewise.
        v: Likewise.
        lse: Log-sum-exp of the forward (B, Hq, M).
        delta: ``sum_d O dO`` minus the log-sum-exp's own gradient (B, Hq, M).
        visible: The mask of given queries.
        scale: Factor of the scores.
        io: Dtype that P and dS are rounded to before they multiply.
        block: Queries per step; None chooses.
    """
    batch, heads, rows, _ = q.shape
    if 0 in (batch, heads, rows, k.shape[2]):
        return xp.zeros_like(q), xp.zeros_like(k), xp.zeros_like(v)
    size = block or rows_per_step(rows, batch * heads, k.shape[2])
    offsets = index_range(xp, size, q)
    base = xp.where(lse == float("-inf"), xp.zeros_like(lse), lse)

    def step(carry: Any, position: Any) -> tuple[Any, tuple[Any, ...]]:
        dk, dv = carry
        given = position * size + offsets
        queries = xp.clip(given, 0, rows - 1)
        seen = every(xp, (visible(queries), (given < rows)[:, None]))
        q_step, do_step = take(xp, q, queries, 2), take(xp, do, queries, 2)
        s = scale * scores(xp, q_step, k) - take(xp, base, queries, 2)[..., None]
        nothing = xp.zeros_like(s)
        p = xp.where(seen, xp.exp(s), nothing)
        ds = xp.where(seen, p * (scores(xp, do_step, v) - take(xp, delta, queries, 2)[..., None]), nothing)
        p, ds = round_through(p, io), round_through(ds, io)
        dk = dk + by_key(xp, ds, seen, q_step, k.shape[1])
        dv = dv + by_key(xp, p, seen, do_step, v.shape[1])
        return (dk, dv), (by_query(xp, ds, seen, k, signed=True),)

    (dk, dv), (dq,) = sweep(xp, -(-rows // size), step, (xp.zeros_like(k), xp.zeros_like(v)))
    return scale * join_rows(xp, dq, rows), scale * dk, dv
