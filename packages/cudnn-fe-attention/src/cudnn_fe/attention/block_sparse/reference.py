"""The definition of block-sparse attention and of its gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, index_range, narrow, sweep, take, wide
from cudnn_fe.attention.gathered import Among
from cudnn_fe.attention.pieces import attend, attend_gradients, log_sum_exp
from cudnn_fe.attention.tiles import Visible, join_rows

if TYPE_CHECKING:
    from cudnn_fe.attention.block_sparse.op import BlockSparseAttention, BlockSparseAttentionBackward

__all__ = ["backward", "forward", "visible_keys"]


def forward(
    problem: BlockSparseAttention,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    index: Any,
    nums: Any,
    sizes: Any,
    softmax_scale: float,
) -> tuple[Any, Any]:
    """``(O, LSE)`` of softmax attention over the tokens of the listed blocks.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries in the problem's layout.
        k: Keys.
        v: Values.
        index: Listed blocks (B, heads, query blocks, capacity).
        nums: Blocks of each list, or None.
        sizes: Valid tokens of each key block, or None.
        softmax_scale: Factor of the scores.
    """
    q, k, v = (_heads_first(problem, xp, wide(x)) for x in (q, k, v))
    visible = visible_keys(problem, xp, index, nums, sizes)
    io = problem.q_tensor.dtype.name
    output, top, total = attend(xp, q, k, v, visible, softmax_scale, io)
    return _heads_first(problem, xp, narrow(output, io)), log_sum_exp(xp, top, total)


def backward(
    problem: BlockSparseAttentionBackward,
    xp: Any,
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    index: Any,
    nums: Any,
    sizes: Any,
    dlse: Any,
    softmax_scale: float,
) -> tuple[Any, Any, Any]:
    """``(dQ, dK, dV)``, from the forward's results.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        do: Gradient of O.
        q: Queries in the problem's layout.
        k: Keys.
        v: Values.
        o: The forward's output.
        lse: The forward's log-sum-exp.
        index: Listed blocks.
        nums: Blocks of each list, or None.
        sizes: Valid tokens of each key block, or None.
        dlse: Gradient of the log-sum-exp, or None.
        softmax_scale: Factor of the scores.
    """
    do, q, k, v, o = (_heads_first(problem, xp, wide(x)) for x in (do, q, k, v, o))
    delta = xp.sum(o * do, axis=-1)
    if dlse is not None:
        delta = delta - dlse
    visible = visible_keys(problem, xp, index, nums, sizes)
    io = problem.q_tensor.dtype.name
    grads = attend_gradients(xp, do, q, k, v, lse, delta, visible, softmax_scale, io)
    return tuple(_heads_first(problem, xp, narrow(x, io)) for x in grads)


def _heads_first(problem: Any, xp: Any, x: Any) -> Any:
    """From the problem's layout to (B, H, S, D), and back."""
    return x if problem.layout == "bhsd" else xp.permute_dims(x, (0, 2, 1, 3))


def visible_keys(problem: Any, xp: Any, index: Any, nums: Any, sizes: Any) -> Visible:
    """The mask: a key is seen whose block is listed and whose place in the block is within the block's length."""
    e, lists = problem.extents, problem.lists
    group = e.query_heads // max(e.key_heads, 1)
    if 0 in (e.batch, e.query_heads, e.queries, e.keys):
        return lambda queries: lambda keys: None
    listed = _membership(xp, index, nums, lists.count, -(-e.keys // lists.block))
    within = _within(xp, sizes, index_range(xp, e.keys, index), lists.block)
    if within is not None and lists.packed and sizes.ndim == 3:
        within = xp.repeat(within, group, axis=1)

    def visible(queries: Any) -> Any:
        if lists.packed:
            rows = [take(xp, listed, (queries * group + member) // lists.block, 2) for member in range(group)]
            stacked = xp.stack(rows, axis=2)
            mask = xp.reshape(stacked, (e.batch, e.query_heads, *stacked.shape[3:]))
        else:
            mask = take(xp, listed, queries // lists.block, 2)

        def among(keys: Any) -> Any:
            shown = take(xp, mask, keys // lists.block, 3)
            return shown if within is None else every(xp, (shown, take(xp, within, keys, 3)))

        def near() -> Any:
            return xp.repeat(xp.any(mask, axis=(0, 1, 2)), lists.block)[: e.keys]

        return Among(among, near)

    return visible


def _membership(xp: Any, index: Any, nums: Any, count: int | None, blocks: int) -> Any:
    """Whether each list holds each key block: (B, heads, query blocks, blocks). Entries past the count are not read."""
    rows, capacity = index.shape[2:]
    slots, ids = index_range(xp, capacity, index), index_range(xp, blocks, index)

    def step(carry: Any, row: Any) -> tuple[Any, tuple[Any, ...]]:
        at = row + index_range(xp, 1, index)
        counted = slots < (count if nums is None else take(xp, nums, at, 2)[..., None])
        hits = (take(xp, index, at, 2)[..., None] == ids) & counted[..., None]
        return carry, (xp.any(hits, axis=-2),)

    return join_rows(xp, sweep(xp, rows, step, ())[1][0], rows)


def _within(xp: Any, sizes: Any, keys: Any, block: int) -> Any:
    """Whether each token lies within its block's length, (B or 1, heads or 1, 1, Sk); None where all do."""
    if sizes is None:
        return None
    lengths = take(xp, sizes, keys // block, sizes.ndim - 1)
    inside = keys % block < lengths
    shape = {1: (1, 1), 2: (sizes.shape[0], 1), 3: sizes.shape[:2]}[sizes.ndim]
    return xp.reshape(inside, (*shape, 1, keys.shape[0]))
