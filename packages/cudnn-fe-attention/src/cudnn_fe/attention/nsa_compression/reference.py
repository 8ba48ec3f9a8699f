"""The definition of NSA's compression attention, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import every, narrow, wide
from cudnn_fe.attention.pieces import attend, log_sum_exp
from cudnn_fe.attention.sequences import batch_first, rows_of, same_sequence
from cudnn_fe.attention.tiles import Visible

if TYPE_CHECKING:
    from cudnn_fe.attention.nsa_compression.op import CompressionAttention

__all__ = ["compression_attention"]


def compression_attention(
    problem: CompressionAttention,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    q_offsets: Any,
    k_offsets: Any,
    scale_q: float,
    scale_k: float,
    scale_v: float,
    inv_scale_o: float,
    scale_softmax: float,
) -> tuple[Any, Any]:
    """``(O, LSE)``: key j is seen from the query on at which its group of tokens has ended.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries, padded or packed.
        k: Compressed keys.
        v: Compressed values.
        q_offsets: First row of each packed sequence of queries, or None.
        k_offsets: Likewise for keys.
        scale_q: Factor of Q.
        scale_k: Factor of K.
        scale_v: Factor of V.
        inv_scale_o: Factor of the output.
        scale_softmax: Factor of the scores.
    """
    q, k, v = (batch_first(xp, wide(x)) for x in (q, k, v))
    if problem.q_tensor.ndim == 4:
        visible = _padded(q.shape[2], k.shape[2])
    else:
        visible = _packed(xp, q_offsets, k_offsets, q.shape[2], k.shape[2])
    scale = scale_q * scale_k * scale_softmax
    output, top, total = attend(xp, q, k, v, visible, scale, problem.q_tensor.dtype.name)
    output, lse = narrow(output * (scale_v * inv_scale_o), problem.o_dtype.name), log_sum_exp(xp, top, total)
    if problem.q_tensor.ndim == 4:
        return output, lse
    rows = xp.permute_dims(lse[0], (1, 0))
    return xp.permute_dims(output[0], (1, 0, 2)), rows if problem.flat else rows[..., None]


def _padded(queries: int, keys: int) -> Visible:
    group = max(1, queries // max(keys, 1))
    return lambda rows: lambda columns: (columns + 1) * group <= rows[:, None] + 1


def _packed(xp: Any, q_offsets: Any, k_offsets: Any, queries: int, keys: int) -> Visible:
    of_queries, of_keys = rows_of(xp, q_offsets, queries), rows_of(xp, k_offsets, keys)
    key_lengths = k_offsets[1:] - k_offsets[:-1]
    query_lengths = q_offsets[1:] - q_offsets[:-1]
    one = xp.ones_like(key_lengths)
    groups = xp.maximum(one, query_lengths // xp.maximum(one, key_lengths))

    def visible(rows: Any) -> Any:
        at = of_queries.at(xp, rows)
        group = xp.take(groups, xp.clip(at.sequence, 0, groups.shape[0] - 1), axis=0)

        def among(columns: Any) -> Any:
            of = of_keys.at(xp, columns)
            ended = (of.position + 1) * group[:, None] <= at.position[:, None] + 1
            return every(xp, (same_sequence(at, of), ended))

        return among

    return visible
