"""Fair timing of contenders against one another: call by call in turn, medians, cold operands.

Only ratios of one run hold: the same GEMM runs a fifth slower on a hot card. So contenders alternate, and each round
starts with another one. Operands rotate over more than the L2 cache. On a GPU a round is queued behind a sleeping
kernel, so that the time between two events is the device's, not the host's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cudnn._cli.bench.machine import sm_clock_mhz

__all__ = ["ROTATION_BYTES", "Timing", "microseconds_between", "record_event", "rotation", "time_alternating"]

ROTATION_BYTES = 64 << 20  # the L2 of the largest GPU here is 60 MB
_INTERVAL_US = 200.0  # between two events, so that their own microsecond does not count
_SLEEP_CYCLES_PER_SECOND = 2.0e9  # of the sleeping kernel, at the highest clock
_LONGEST_SLEEP_SECONDS = 0.5

Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """One contender's result.

    Attributes:
        microseconds: Median time of a call.
        rounds: Timings that the median is of.
        method: How.
        clock_mhz: Median clock of the multiprocessors, or None.
    """

    microseconds: float
    rounds: int
    method: str
    clock_mhz: int | None


def rotation(operand_bytes: int) -> int:
    """How many sets of operands to rotate over, at least 2."""
    return max(2, math.ceil(ROTATION_BYTES / max(1, operand_bytes)) + 1)


def time_alternating(calls: Sequence[Call], sets: int, *, rounds: int, cuda: bool) -> list[Timing]:
    """Time ``calls`` against one another.

    Args:
        calls: Each runs one contender on the operand set of the given index.
        sets: Number of operand sets.
        rounds: Timings of each contender.
        cuda: Whether they run on the current CUDA device; else the host clock times them.

    Returns:
        One result per call, in their order.
    """
    for call in calls:  # compiles, fills caches
        for index in range(min(sets, 3)):
            call(index)
    return _on_gpu(calls, sets, rounds) if cuda else _on_host(calls, sets, rounds)


def _turns(count: int, rounds: int) -> list[list[int]]:
    """Who goes in which order: each round starts with the next contender."""
    return [[(start + offset) % count for offset in range(count)] for start in range(rounds)]


def _on_host(calls: Sequence[Call], sets: int, rounds: int) -> list[Timing]:
    seconds: list[list[float]] = [[] for _ in calls]
    for number, turn in enumerate(_turns(len(calls), rounds)):
        for which in turn:
            began = time.perf_counter()
            calls[which](number % sets)
            seconds[which].append(time.perf_counter() - began)
    return [Timing(median(row) * 1e6, rounds, "host clock, alternating", None) for row in seconds]


def _on_gpu(calls: Sequence[Call], sets: int, rounds: int) -> list[Timing]:
    repeats = [max(1, math.ceil(_INTERVAL_US / _estimate(call, sets))) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    clocks: list[int] = []
    sleep, position = 2e-3, 0
    turns = _turns(len(calls), rounds)
    while turns:
        _cuda().synchronize()
        _sleep(sleep)
        awake = record_event()
        pairs = []
        for which in turns[0]:
            begin = record_event()
            for _ in range(repeats[which]):
                calls[which](position % sets)
                position += 1
            pairs.append((which, begin, record_event()))
        if awake.query() and sleep < _LONGEST_SLEEP_SECONDS:
            sleep *= 2  # the device caught up with the host: these times would be the host's
            continue
        clock = sm_clock_mhz()
        if clock is not None:
            clocks.append(clock)
        for which, begin, end in pairs:
            samples[which].append(microseconds_between(begin, end) / repeats[which])
        turns.pop(0)
    clock = round(median(clocks)) if clocks else None
    return [Timing(median(row), rounds, "events behind a backlog, alternating", clock) for row in samples]


def _estimate(call: Call, sets: int) -> float:
    """Microseconds of one call, roughly and from above."""
    _cuda().synchronize()
    _sleep(1e-3)
    begin = record_event()
    for index in range(4):
        call(index % sets)
    end = record_event()
    return max(1.0, microseconds_between(begin, end) / 4)


def record_event() -> Any:
    """A timing event at this point of the current stream."""
    event: Any = _cuda().Event(enable_timing=True)
    event.record()
    return event


def microseconds_between(begin: Any, end: Any) -> float:
    """Device time from one event to another; waits for the second."""
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _sleep(seconds: float) -> None:
    _cuda()._sleep(int(seconds * _SLEEP_CYCLES_PER_SECOND))


def _cuda() -> Any:
    """torch.cuda, whose functions carry no types."""
    import torch

    return torch.cuda
