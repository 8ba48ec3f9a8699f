"""The 16-point Hadamard transform of values spread over two neighbouring lanes."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, cute

__all__ = ["hadamard16_of_lane_pair"]


def hadamard16_of_lane_pair(values: list[Any], lane: Any) -> list[Float32]:
    """Unnormalised natural-order transform of 16 fp32 values, eight of them here and eight in ``lane ^ 1``.

    Stages of stride 1, 2, 4 and 8, each ``(a, b) -> (a + b, a - b)``, rounded at each step.

    Args:
        values: This lane's eight; an even lane holds the first eight.
        lane: This thread's lane.
    """
    for stride in (1, 2, 4):
        stage = list(values)
        for low in range(8):
            if not low & stride:
                high = low + stride
                stage[low], stage[high] = values[low] + values[high], values[low] - values[high]
        values = stage
    sign = Float32(1 - 2 * (lane & 1))  # an odd lane has b: a - b is the other's value minus its own
    return [value * sign + cute.arch.shuffle_sync_bfly(value, 1) for value in values]
