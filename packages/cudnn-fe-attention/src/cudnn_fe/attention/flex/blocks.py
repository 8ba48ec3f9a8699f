"""The blocks of a mask: which tiles of queries and keys are seen in part or as a whole, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.sequences import in_ranges

__all__ = ["Sample", "view"]


@dataclass(frozen=True)
class Sample:
    """One sequence's mask.

    Attributes:
        ends: Endpoints (masks, N, queries), NumPy.
        q_offset: Its first query.
        k_offset: Its first key.
        keys: Its keys.
    """

    ends: Any
    q_offset: int
    k_offset: int
    keys: int

    def repeated(self, times: int) -> Sample:
        """With every query as often as heads share a tile."""
        return Sample(self.ends.repeat(times, axis=2), self.q_offset, self.k_offset, self.keys)

    def tiles(self, size: int) -> tuple[Any, Any]:
        """Which tiles are seen in part, and which as a whole: (masks, query blocks, key blocks)."""
        import numpy as np

        masks, _, rows = self.ends.shape
        across, down = -(-self.keys // size), -(-rows // size)
        columns = np.arange(across * size)
        partial = np.zeros((masks, down, across), bool)
        full = np.zeros_like(partial)
        for block in range(down):
            ends = self.ends[:, :, block * size : (block + 1) * size]
            seen = in_ranges(ends.transpose(1, 0, 2), columns) & (columns < self.keys)
            folded = seen.reshape(masks, ends.shape[2], across, size)
            full[:, block] = folded.all(axis=(1, 3)) & (ends.shape[2] == size)
            partial[:, block] = folded.any(axis=(1, 3)) & ~full[:, block]
        return partial, full


def _lists(tables: Sequence[Any], masks: int) -> tuple[Any, Any, Any]:
    """Counts (masks, rows), offsets (masks * rows + 1,) and ascending ids of what is true in each sample's tables."""
    import numpy as np

    rows = [row for mask in range(masks) for table in tables for row in table[mask]]
    counts = np.asarray([row.sum() for row in rows], np.int32)
    ids = np.concatenate([np.zeros(0, np.int64), *[row.nonzero()[0] for row in rows]]).astype(np.int32)
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    return counts.reshape(masks, -1), offsets, ids


def view(samples: Sequence[Sample], size: int, *, by_key: bool, varlen: bool) -> dict[str, Any]:
    """Lists of blocks for every block of queries, or for every block of keys.

    Args:
        samples: The sequences.
        size: Queries and keys of a block.
        by_key: Whether rows are blocks of keys.
        varlen: Whether sequences differ in length: their places are listed too.
    """
    import numpy as np

    tiles = [sample.tiles(size) for sample in samples]
    if by_key:
        tiles = [(partial.swapaxes(1, 2), full.swapaxes(1, 2)) for partial, full in tiles]
    masks = samples[0].ends.shape[0] if samples else 1
    found: dict[str, Any] = {}
    for position, kind in enumerate(("mask", "full")):
        counts, offsets, ids = _lists([pair[position] for pair in tiles], masks)
        names = (f"{kind}_block_cnt", f"{kind}_block_offset", f"{kind}_block_idx")
        found.update(zip(names, (counts, offsets, ids), strict=True))
    count = [partial.shape[1] for partial, _ in tiles]
    starts = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    described = [
        (s.q_offset, s.k_offset, s.ends.shape[2], s.keys, starts[i], count[i], -(-s.keys // size), 0)
        for i, s in enumerate(samples)
    ]
    return {
        **found,
        "mask_block_masks": None,
        "cu_total_m_blocks": starts if varlen else None,
        "dq_write_order": None,
        "dq_write_order_full": None,
        "sequence_desc": np.asarray(described, np.int32).reshape(-1, 8) if varlen else None,
        "fwd_work_desc": None,
    }
