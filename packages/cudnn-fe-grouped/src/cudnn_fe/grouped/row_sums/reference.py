"""The definition of the sums of experts' rows, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.grouped.groups import groups_of, sum_rows
from cudnn_fe.grouped.unfused.reference import empty

if TYPE_CHECKING:
    from cudnn_fe.grouped.row_sums.op import RowSums

__all__ = ["row_sums"]


def row_sums(problem: RowSums, xp: Any, x: Any, offsets: Any) -> tuple[Any]:
    """``(sums,)``, in blocks of rows one after another.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: (M, X) float32.
        offsets: (L,) ends.
    """
    if 0 in x.shape:
        return (empty(xp, problem, x)[0],)
    return (sum_rows(xp, groups_of(xp, offsets, x.shape[0]), x),)
