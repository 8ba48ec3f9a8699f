"""Into how many chunks time is cut: plain arithmetic, on the host's integers or on those of a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["chunk_count"]

_TRIES = 8


def chunk_count(
    spec: Any, least: int, blocks: Any, tokens: Any, unit: int, select: Callable[[Any, Any, Any], Any]
) -> Any:
    """The count with which the blocks that the chip holds at once end together, and few begin anew.

    The time of a grid is that of its waves, the last one often with few blocks, and each block's start costs as much
    as two turns of its loop: its first loads wait for nothing to overlap with.

    Args:
        spec: Says how many blocks are resident.
        least: Blocks that each multiprocessor should have in all.
        blocks: Blocks of one chunk.
        tokens: Tokens of which a block takes a chunk.
        unit: Tokens of one turn.
        select: ``select(condition, value, other)``.
    """
    slots = spec.resident * spec.multiprocessors
    most = (tokens + unit - 1) // unit
    best = lowest = None
    for waves in range(least // spec.resident, least // spec.resident + _TRIES):
        count = waves * slots // blocks
        count = select(count > most, most, count)
        count = select(count < 1, 1, count)
        length = ((tokens + count - 1) // count + unit - 1) // unit + 2
        cost = (blocks * count + slots - 1) // slots * length
        if best is None:
            best, lowest = count, cost
        else:
            better = cost < lowest
            best, lowest = select(better, count, best), select(better, cost, lowest)
    return best
