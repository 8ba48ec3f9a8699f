"""The definitions of the ops on lists of key ids, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import astype, index_range, take
from cudnn_fe.attention.sequences import rows_of
from cudnn_fe.attention.top_k import along_last

if TYPE_CHECKING:
    from cudnn_fe.attention.dsa.indices.op import Compactify, LocalToGlobal

__all__ = ["compactify", "local_to_global"]


def local_to_global(problem: LocalToGlobal, xp: Any, ids: Any, q_offsets: Any, k_offsets: Any) -> tuple[Any]:
    """Ids among all keys, -1 for those that are negative.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        ids: Ids within a sequence (B, Sq, K) or (Tq, K).
        q_offsets: First query of each sequence, or None.
        k_offsets: First key of each sequence, or None.
    """
    valid = ids >= 0
    if q_offsets is None:
        first = (index_range(xp, ids.shape[0], ids) * problem.seqlen_k)[:, None, None]
    else:
        at = rows_of(xp, q_offsets, ids.shape[0])
        first, valid = take(xp, k_offsets, at.sequence, 0)[:, None], valid & at.valid[:, None]
    found = astype(ids + first, "int32")
    return (xp.where(valid, found, xp.full_like(found, -1)),)


def compactify(problem: Compactify, xp: Any, ids: Any) -> tuple[Any, Any]:
    """Non-negative ids in front, in their order, then -1; and how many there are.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        ids: Lists (M, K) or (B, S, K).
    """
    ids = xp.reshape(ids, (problem.rows, ids.shape[-1]))
    absent = astype(ids < 0, "int32")
    moved = along_last(xp, ids, xp.argsort(absent, axis=-1, stable=True))
    return xp.where(moved < 0, xp.full_like(moved, -1), moved), astype(xp.sum(1 - absent, axis=-1), "int32")
