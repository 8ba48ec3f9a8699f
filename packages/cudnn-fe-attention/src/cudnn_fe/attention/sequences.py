"""Packed sequences: which sequence a row belongs to, and its place there, from offsets that only the device knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.arrays import astype, index_range, take

__all__ = ["Rows", "batch_first", "in_ranges", "offsets_of", "rows_of", "same_sequence"]


@dataclass(frozen=True)
class Rows:
    """Rows of a packed tensor.

    Attributes:
        sequence: The sequence of each row.
        position: Its place in the sequence.
        length: The sequence's length.
        valid: Whether the row belongs to a sequence at all.
    """

    sequence: Any
    position: Any
    length: Any
    valid: Any

    def at(self, xp: Any, indices: Any) -> Rows:
        """Those rows."""
        return Rows(*(take(xp, x, indices, 0) for x in (self.sequence, self.position, self.length, self.valid)))


def offsets_of(xp: Any, lengths: Any) -> Any:
    """Offsets (B+1,) of sequences of these lengths, packed without gaps."""
    ends = xp.cumulative_sum(astype(lengths, "int32"), axis=0)
    return xp.concat((xp.zeros_like(ends[:1]), ends))


def rows_of(xp: Any, offsets: Any, count: int, lengths: Any = None) -> Rows:
    """The rows of a tensor of ``count`` rows whose sequences start at ``offsets`` (B+1,).

    Args:
        xp: Array namespace.
        offsets: First row of each sequence, and the end of the last one.
        count: Rows of the tensor.
        lengths: Rows of each sequence where there are gaps between them; None: up to the next one.
    """
    row = index_range(xp, count, offsets)
    sequence = xp.sum(astype(offsets[1:] <= row[:, None], "int32"), axis=1)
    length = take(xp, offsets[1:] - offsets[:-1] if lengths is None else lengths, sequence, 0)
    position = row - take(xp, offsets, sequence, 0)
    valid = (sequence < offsets.shape[0] - 1) & (position < length) & (position >= 0)
    return Rows(sequence, position, length, valid)


def same_sequence(queries: Rows, keys: Rows) -> Any:
    """Whether query and key belong to one sequence: (M, N)."""
    return (queries.sequence[:, None] == keys.sequence) & queries.valid[:, None] & keys.valid


def batch_first(xp: Any, x: Any) -> Any:
    """Packed (T, H, D) as one sequence (1, H, T, D); padded operands as they are."""
    return x if x.ndim == 4 else xp.permute_dims(x, (1, 0, 2))[None]


def in_ranges(ends: Any, column: Any) -> Any:
    """Whether a key lies before the first end, or in one of the ranges that follow it in pairs.

    Args:
        ends: (N, ..., M), N odd: for each query an end, and then the first and the end of every range.
        column: Keys (K,).

    Returns:
        (..., M, K).
    """
    inside = column < ends[0][..., None]
    for pair in range(ends.shape[0] // 2):
        low, high = ends[2 * pair + 1], ends[2 * pair + 2]
        inside = inside | ((column >= low[..., None]) & (column < high[..., None]))
    return inside
