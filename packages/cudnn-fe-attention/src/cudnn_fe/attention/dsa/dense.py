"""Dense scores of compressed keys: which columns a query sees, padded or packed, and the indexer's score of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.arrays import index_range, take
from cudnn_fe.attention.operands import require_offsets, require_positive
from cudnn_fe.attention.pieces import scores
from cudnn_fe.attention.rows import over_rows
from cudnn_fe.attention.sequences import rows_of
from cudnn_fe.attention.top_k import along_last
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = [
    "Columns",
    "Extents",
    "bind_columns",
    "columns_of",
    "heads_first",
    "indexer_scores",
    "longest_of",
    "over_queries",
]


@dataclass(frozen=True)
class Extents:
    """Extents of a dense call: of a padded one, or of packed sequences, which count as one batch.

    Attributes:
        batch: Batches of padded operands, else 1.
        rows: Queries of a batch.
        keys: Keys of a batch.
        width: Columns of the result.
        packed: Whether sequences are packed.
    """

    batch: int
    rows: int
    keys: int
    width: int
    packed: bool

    @property
    def lead(self) -> tuple[int, ...]:
        """Leading dims of the results."""
        return (self.rows,) if self.packed else (self.batch, self.rows)


def bind_columns(
    q: TensorSpec,
    k: TensorSpec,
    offsets: tuple[TensorSpec | None, TensorSpec | None],
    causal: TensorSpec | None,
    *,
    ratio: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
) -> Extents:
    """Validates what says which columns a query sees; q and k are (B, S, ...) or, with offsets, (T, ...)."""
    require_positive(ratio, "ratio")
    first, second = offsets
    if (first is None) != (second is None):
        missing = "cu_seqlens_q" if first is None else "cu_seqlens_k"
        raise ShapeError(missing, got="None", wanted="both offsets, or neither", remedy="pass cu_seqlens_q and _k")
    if first is None or second is None:
        batch, rows, keys = q.shape[0], q.shape[1], k.shape[1]
        extents = Extents(batch, rows, keys, keys, packed=False)
    else:
        for spec in (first, second):
            require_dtype(spec, "int32")
        batch = require_offsets(first)
        require_offsets(second, first)
        require_same_device(q, first, second)
        for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise OptionError(
                    name, got=repr(value), wanted="the longest sequence, as an int", remedy="pass it beside cu_seqlens"
                )
        extents = Extents(1, q.shape[0], k.shape[0], max_seqlen_k, packed=True)
    if causal is not None:
        require_dtype(causal, "int32")
        require_shape(causal, (batch,), "(B,)")
        require_same_device(q, causal)
    return extents


@dataclass(frozen=True)
class Columns:
    """What each query sees: the first ``count`` keys of its sequence.

    Attributes:
        first: Id of the sequence's first key among all keys (batch, rows).
        count: Keys that are visible (batch, rows).
        extents: The call's extents.
    """

    first: Any
    count: Any
    extents: Extents

    def local(self, xp: Any, x: Any, queries: Any) -> tuple[Any, Any]:
        """``x`` (batch, M, keys) by columns of the result (batch, M, width), and which of them are visible."""
        column = index_range(xp, self.extents.width, x)
        if self.extents.packed:
            ids = take(xp, self.first, queries, 1)[..., None] + column
            x = along_last(xp, x, xp.clip(ids, 0, self.extents.keys - 1))
        return x, column < take(xp, self.count, queries, 1)[..., None]

    def by_key(self, xp: Any, x: Any, queries: Any) -> tuple[Any, Any]:
        """The inverse: ``x`` (batch, M, width) by keys (batch, M, keys), and which of them are visible."""
        column = index_range(xp, self.extents.keys, x)
        if self.extents.packed:
            column = column - take(xp, self.first, queries, 1)[..., None]
            x = along_last(xp, x, xp.clip(column, 0, self.extents.width - 1))
        return x, (column >= 0) & (column < take(xp, self.count, queries, 1)[..., None])


def columns_of(
    xp: Any, extents: Extents, ratio: int, like: Any, q_offsets: Any, k_offsets: Any, causal: Any
) -> Columns:
    """Query r of its sequence, which stands at token ``causal + r``, sees ``(causal + r + 1) // ratio`` keys."""
    if extents.packed:
        at = rows_of(xp, q_offsets, extents.rows)
        keys = take(xp, k_offsets[1:] - k_offsets[:-1], at.sequence, 0)
        token = at.position if causal is None else at.position + take(xp, causal, at.sequence, 0)
        seen = xp.minimum(xp.maximum((token + 1) // ratio, xp.zeros_like(keys)), keys)
        seen = xp.where(at.valid, xp.clip(seen, 0, extents.width), xp.zeros_like(seen))
        return Columns(take(xp, k_offsets, at.sequence, 0)[None], seen[None], extents)
    row = index_range(xp, extents.rows, like)[None]
    token = row if causal is None else row + causal[:, None]
    seen = xp.clip((token + 1) // ratio, 0, extents.keys)
    shape = (extents.batch, extents.rows)
    first = index_range(xp, extents.batch, like)[:, None] * extents.keys
    return Columns(xp.broadcast_to(first, shape), xp.broadcast_to(seen, shape), extents)


def longest_of(offsets: Any, given: int | None, name: str) -> int | None:
    """``given``, or the longest sequence of packed operands, read on the host; None for padded ones."""
    if given is not None or offsets is None:
        return given
    require_offsets(spec_of(offsets, name.replace("max_seqlen", "cu_seqlens")))
    try:
        return int((offsets[1:] - offsets[:-1]).max())
    except TypeError:
        raise OptionError(
            name, got="None while tracing", wanted="the longest sequence", remedy="pass it as an int"
        ) from None


def heads_first(xp: Any, x: Any) -> Any:
    """(B, S, H, ...) or packed (T, H, ...) as (B, H, S, ...), packed sequences as one batch."""
    x = x if x.ndim == 4 else x[None]
    return xp.permute_dims(x, (0, 2, 1, 3))


def indexer_scores(xp: Any, q: Any, k: Any, weights: Any) -> Any:
    """``sum_h max(q_h . k, 0) w_h``: (B, M, N) of queries (B, H, M, D), keys (B, Hkv, N, D), weights (B, H, M)."""
    s = scores(xp, q, k)
    positive = xp.where(s < 0, xp.zeros_like(s), s)  # keeps a NaN, unlike a maximum
    return xp.sum(positive * weights[..., None], axis=1)


def over_queries(
    xp: Any, extents: Extents, q: Any, body: Callable[..., tuple[Any, tuple[Any, ...]]], carry: Any = ()
) -> tuple[Any, tuple[Any, ...]]:
    """`over_rows` for a body whose results are (batch, M, ...): all of them as (*lead, ...)."""

    def step(carry: Any, at: Any, fresh: Any) -> tuple[Any, tuple[Any, ...]]:
        carry, results = body(carry, at, fresh)
        return carry, tuple(xp.moveaxis(x, 1, 0) for x in results)

    width = max(q.shape[1] * extents.keys, extents.width)
    carry, results = over_rows(xp, q, extents.rows, extents.batch * width, step, carry)
    return carry, tuple(xp.reshape(xp.moveaxis(x, 0, 1), (*extents.lead, *x.shape[2:])) for x in results)
