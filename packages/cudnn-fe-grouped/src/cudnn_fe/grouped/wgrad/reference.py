"""The definition of the grouped weight gradient, for any array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype, counting, rounded
from cudnn_fe.grouped.addresses import gather_bytes, scatter_bytes
from cudnn_fe.grouped.groups import Groups, by_expert, groups_of
from cudnn_fe.grouped.unfused.reference import zeros
from cudnn_fe.grouped.weights import in_dtype

if TYPE_CHECKING:
    from cudnn_fe.core.tensor import TensorSpec
    from cudnn_fe.grouped.wgrad.op import GroupedWgrad

__all__ = ["accumulated", "behind_addresses", "grouped_wgrad", "unravelled"]


def grouped_wgrad(
    problem: GroupedWgrad, xp: Any, a: Any, b: Any, offsets: Any, old: Any, pointers: Any = None
) -> tuple[Any]:
    """``W[e] = A[:, rows of e] @ B[rows of e]``, plus ``old`` where given, each rounded to W's dtype.

    Args:
        problem: The bound problem; names the output dtype.
        xp: Array namespace of the operands.
        a: (h, t).
        b: (t, i).
        offsets: (E,) ends.
        old: (E, h, i) to add to, or None.
        pointers: Addresses of the (h, i) results, or None.
    """
    if pointers is not None:
        return (behind_addresses(problem, xp, pointers, lambda found: _sums(problem, xp, a, b, offsets, found)),)
    return (_sums(problem, xp, a, b, offsets, old),)


def behind_addresses(problem: Any, xp: Any, pointers: Any, sums: Callable[[Any], Any]) -> Any:
    """Write the sums behind the addresses, or add them there."""
    count, rows, columns = problem.offsets_tensor.shape[0], problem.a_tensor.shape[0], problem.b_tensor.shape[1]
    shape, kind, old = (count, rows, columns), problem.wgrad_dtype, None
    nbytes = rows * columns * kind.itemsize
    if not nbytes:
        return zeros(xp, (1,), pointers)  # the addresses are not read, which would wait for a GPU
    if problem.accumulate:
        old = xp.reshape(in_dtype(xp, gather_bytes(xp, pointers, nbytes), kind), shape)
    whole = xp.reshape(sums(old), (count, rows * columns))
    return scatter_bytes(xp, pointers, whole.view(xp.uint8))


def _sums(problem: GroupedWgrad, xp: Any, a: Any, b: Any, offsets: Any, old: Any) -> Any:
    kind = problem.wgrad_dtype.name
    (h, t), i = a.shape, b.shape[1]
    if 0 in (h, t, i):
        shape = (problem.offsets_tensor.shape[0], h, i)
        return astype(zeros(xp, shape, a), kind) if old is None else old
    groups = groups_of(xp, offsets, a.shape[1])
    rows = xp.permute_dims(a, (1, 0))
    if problem.ragged:
        rows = unravelled(xp, groups, offsets, rows, problem.a_tensor.permute((1, 0)))
        b = unravelled(xp, groups, offsets, b, problem.b_tensor)
    total = by_expert(xp, groups, rows, b)
    return accumulated(total, old, kind)


def accumulated(total: Any, old: Any, kind: str) -> Any:
    """The sums in their dtype; rounded, and added to ``old`` where that is given."""
    if old is not None:
        total = rounded(total, kind) + astype(old, "float32")
    return astype(total, kind)


def unravelled(xp: Any, groups: Groups, offsets: Any, x: Any, spec: TensorSpec) -> Any:
    """(t, X) from storage in which each expert's block is compact by itself, contiguous along t.

    Where the last dim is contiguous, that storage and the plain one are the same.
    """
    t, width = x.shape
    if spec.strides[1] == 1 or width == 1:
        return x
    flat = xp.reshape(xp.permute_dims(x, (1, 0)), (t * width,))
    ends = xp.clip(offsets, 0, t)
    begins = xp.concat((xp.zeros_like(ends[:1]), ends[:-1]))
    begin, size = xp.take(begins, groups.owner), xp.take(ends - begins, groups.owner)
    column = counting(xp, width, x)[None, :]
    where = begin[:, None] * width + column * size[:, None] + (counting(xp, t, x) - begin)[:, None]
    where = xp.clip(where, 0, t * width - 1)  # rows past the end point anywhere; they are not read on
    return xp.reshape(xp.take(flat, xp.reshape(where, (t * width,))), (t, width))
