"""The definition of NSA's selection attention, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, index_range, narrow, take, wide
from cudnn_fe.attention.gathered import Among
from cudnn_fe.attention.pieces import attend
from cudnn_fe.attention.sequences import batch_first, rows_of, same_sequence

if TYPE_CHECKING:
    from cudnn_fe.attention.nsa_selection.op import SelectionAttention

__all__ = ["selection_attention"]


def selection_attention(
    problem: SelectionAttention,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    indices: Any,
    counts: Any,
    q_offsets: Any,
    k_offsets: Any,
    scale_softmax: float,
) -> tuple[Any, Any, Any]:
    """``(O, L, M)`` over the tokens of each query's blocks.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Packed queries (T, Hq, D).
        k: Packed keys.
        v: Packed values.
        indices: Blocks of each query and key head (T, Hkv, K).
        counts: Entries that are read (T, Hkv).
        q_offsets: First row of each sequence of queries.
        k_offsets: Likewise for keys.
        scale_softmax: Factor of the scores.
    """
    q, k, v = (batch_first(xp, wide(x)) for x in (q, k, v))
    group, keys, size = q.shape[1] // max(k.shape[1], 1), k.shape[2], problem.block_size
    of_queries, of_keys = rows_of(xp, q_offsets, q.shape[2]), rows_of(xp, k_offsets, keys)
    slots, ids = index_range(xp, indices.shape[2], q), index_range(xp, -(-keys // size), q)

    def visible(rows: Any) -> Any:
        at = of_queries.at(xp, rows)
        read = slots < take(xp, counts, rows, 0)[..., None]
        chosen = xp.any((take(xp, indices, rows, 0)[..., None] == ids) & read[..., None], axis=-2)
        chosen = xp.permute_dims(chosen, (1, 0, 2))

        def among(columns: Any) -> Any:
            of = of_keys.at(xp, columns)
            listed = xp.repeat(take(xp, chosen, of.position // size, 2), group, axis=0)
            mask = every(xp, (same_sequence(at, of), listed))
            return mask & (of.position <= at.position[:, None]) if problem.is_causal else mask

        def near() -> Any:
            return take(xp, xp.any(chosen, axis=(0, 1)), of_keys.position // size, 0)

        return Among(among, near)

    output, top, total = attend(xp, q, k, v, visible, scale_softmax, problem.q_tensor.dtype.name)
    output = xp.permute_dims(output[0], (1, 0, 2))
    statistics = tuple(xp.permute_dims(x[0], (1, 0)) for x in (total, top))
    total, top = statistics if problem.flat else tuple(x[..., None] for x in statistics)
    return narrow(output, problem.q_tensor.dtype.name), total, top
