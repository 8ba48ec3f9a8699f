"""The 16-point Hadamard transform of values spread over two neighbouring lanes, or of one."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, cute

__all__ = ["hadamard16", "hadamard16_of_lane_pair"]


def _stages(values: list[Any], strides: tuple[int, ...]) -> list[Any]:
    """Butterflies ``(a, b) -> (a + b, a - b)`` of the strides, rounded at each step."""
    for stride in strides:
        stage = list(values)
        for low in range(len(values)):
            if not low & stride:
                high = low + stride
                stage[low], stage[high] = values[low] + values[high], values[low] - values[high]
        values = stage
    return values


def hadamard16(values: list[Any]) -> list[Float32]:
    """The same transform as `hadamard16_of_lane_pair`'s of 16 values of one lane."""
    return _stages(values, (1, 2, 4, 8))


def hadamard16_of_lane_pair(values: list[Any], lane: Any) -> list[Float32]:
    """Unnormalised natural-order transform of 16 fp32 values, eight of them here and eight in ``lane ^ 1``.

    Stages of stride 1, 2, 4 and 8, each ``(a, b) -> (a + b, a - b)``, rounded at each step.

    Args:
        values: This lane's eight; an even lane holds the first eight.
        lane: This thread's lane.
    """
    values = _stages(values, (1, 2, 4))
    sign = Float32(1 - 2 * (lane & 1))  # an odd lane has b: a - b is the other's value minus its own
    return [value * sign + cute.arch.shuffle_sync_bfly(value, 1) for value in values]
