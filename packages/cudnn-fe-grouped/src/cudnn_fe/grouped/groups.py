"""Rows by expert without knowing on the host where the experts' rows begin.

The rows of each expert are laid into blocks of one height, the last one of each expert filled up with zeros. How many
blocks there may be at most follows from the shapes alone, so offsets stay where they are and may be traced; the work
is at most one block per expert more than there are rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.arrays import astype, counting, is_jax, matmul

__all__ = [
    "Groups",
    "Owners",
    "by_expert",
    "grouped_product",
    "groups_of",
    "keep",
    "of_rows",
    "owners_of",
    "packed_rows",
    "sum_rows",
]

_LEAST, _MOST, _AIM = 8, 128, 64  # block heights, and how many blocks the rows should fill


@dataclass(frozen=True)
class Owners:
    """Whose each row is.

    Attributes:
        inside: (M,) whether the row belongs to an expert.
        owner: (M,) its expert; any in range for rows past the end.
    """

    inside: Any
    owner: Any


@dataclass(frozen=True)
class Groups(Owners):
    """Also where each row goes, and where each block's rows come from.

    Attributes:
        expert: (blocks,) expert of each block; any for blocks that are not used.
        rows: (blocks, height) row of the buffer at each place, in range.
        used: (blocks, height) whether that place holds a row.
        place: (M,) flat place of each row.
        count: Experts.
    """

    expert: Any
    rows: Any
    used: Any
    place: Any
    count: int


def owners_of(xp: Any, offsets: Any, m: int) -> Owners:
    """The owners of ``m`` > 0 rows, from an (L,) array of non-decreasing ends."""
    ends, row = xp.clip(offsets, 0, m), counting(xp, m, offsets)
    owner = xp.clip(xp.searchsorted(ends, row, side="right"), 0, offsets.shape[0] - 1)
    return Owners(row < ends[-1], owner)


def groups_of(xp: Any, offsets: Any, m: int, height: int = 0) -> Groups:
    """The groups of an (L,) array of non-decreasing ends over ``m`` > 0 rows, in blocks of ``height``, if not 0."""
    count = offsets.shape[0]
    height = height or min(_MOST, max(_LEAST, -(-m // _AIM)))
    blocks = -(-m // height) + count
    ends = xp.clip(offsets, 0, m)
    begins = xp.concat((xp.zeros_like(ends[:1]), ends[:-1]))
    each = (ends - begins + (height - 1)) // height
    last = xp.cumulative_sum(each, dtype=xp.int32)
    first = last - each
    number = counting(xp, blocks, offsets)
    expert = xp.clip(xp.searchsorted(last, number, side="right"), 0, count - 1)
    start = xp.take(begins, expert) + (number - xp.take(first, expert)) * height
    rows = start[:, None] + counting(xp, height, offsets)[None, :]
    used = (rows < xp.take(ends, expert)[:, None]) & (number < last[-1])[:, None]
    of = owners_of(xp, offsets, m)
    place = xp.take(first, of.owner) * height + counting(xp, m, offsets) - xp.take(begins, of.owner)
    place = xp.clip(place, 0, blocks * height - 1)
    return Groups(of.inside, of.owner, expert, xp.clip(rows, 0, m - 1), used, place, count)


def keep(xp: Any, groups: Owners, x: Any) -> Any:
    """``x`` (M, ...) with zeros in the rows past the end, whatever they held."""
    inside = groups.inside if x.ndim == 1 else groups.inside[:, None]
    return xp.where(inside, x, xp.zeros_like(x))


def of_rows(xp: Any, groups: Owners, table: Any) -> Any:
    """For each row what ``table`` (L, ...) holds for its expert, in float32."""
    return astype(xp.take(table, groups.owner, axis=0), "float32")


def packed_rows(xp: Any, groups: Groups, x: Any) -> Any:
    """(M, X) as (blocks, height, X), with zeros in unused places."""
    blocks, height = groups.rows.shape
    flat = xp.take(x, xp.reshape(groups.rows, (blocks * height,)), axis=0)
    flat = xp.where(xp.reshape(groups.used, (blocks * height, 1)), flat, xp.zeros_like(flat))
    return xp.reshape(flat, (blocks, height, x.shape[1]))


def grouped_product(xp: Any, groups: Groups, a: Any, b: Any) -> Any:
    """``sum_k A[m,k] * B[expert of m,n,k]`` as float32 (M, N); zeros in the rows past the end."""
    packed = packed_rows(xp, groups, a)

    def of_block(rows: Any, expert: Any) -> Any:
        weight = xp.take(b, expert, axis=0)[0]  # one expert's, so that memory stays bounded
        return matmul(xp, astype(rows, "float32"), xp.permute_dims(astype(weight, "float32"), (1, 0)))

    experts = groups.expert[:, None]
    if is_jax(xp):
        import jax

        out = jax.lax.map(lambda pair: of_block(*pair), (packed, experts))
    else:
        out = xp.stack([of_block(packed[i], experts[i]) for i in range(packed.shape[0])])
    flat = xp.reshape(out, (out.shape[0] * out.shape[1], b.shape[1]))
    return keep(xp, groups, xp.take(flat, groups.place, axis=0))


def _summed(xp: Any, groups: Groups, shape: tuple[int, ...], of_block: Callable[..., Any], *packed: Any) -> Any:
    """(L, *shape) float32: for each expert the sum of ``of_block`` over its blocks, in their order."""
    if is_jax(xp):
        import jax

        def step(total: Any, block: Any) -> tuple[Any, None]:
            expert, *rows = block
            return total.at[expert].add(of_block(*rows)), None

        return jax.lax.scan(step, xp.zeros((groups.count, *shape), dtype="float32"), (groups.expert, *packed))[0]
    place = {"device": packed[0].device} if "torch" in xp.__name__ else {}
    total = xp.zeros((groups.count, *shape), dtype=xp.float32, **place)
    for i in range(packed[0].shape[0]):
        part = of_block(*(x[i] for x in packed))
        if place:
            total.index_add_(0, groups.expert[i : i + 1], part[None])
        else:
            total[groups.expert[i]] += part
    return total


def by_expert(xp: Any, groups: Groups, a: Any, b: Any) -> Any:
    """``sum over the rows m of an expert of A[m,h] * B[m,i]`` as float32 (L, h, i)."""

    def of_block(left: Any, right: Any) -> Any:
        return matmul(xp, xp.permute_dims(astype(left, "float32"), (1, 0)), astype(right, "float32"))

    shape = (a.shape[1], b.shape[1])
    return _summed(xp, groups, shape, of_block, packed_rows(xp, groups, a), packed_rows(xp, groups, b))


def sum_rows(xp: Any, groups: Groups, x: Any) -> Any:
    """The sum of each expert's rows of float32 ``x`` (M, X), as (L, X)."""
    return _summed(xp, groups, (x.shape[1],), lambda rows: xp.sum(rows, axis=0), packed_rows(xp, groups, x))
