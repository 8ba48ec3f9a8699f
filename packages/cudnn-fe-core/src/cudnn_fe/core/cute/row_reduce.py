"""Sums and maxima over the threads of a row, in a fixed order.

Shuffles inside a warp, shared memory across warps, distributed shared memory across the CTAs of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute import distributed
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared

__all__ = ["RowGroups"]

_WARP = 32


def _add(a: Any, b: Any) -> Any:
    return a + b


def _maximum(a: Any, b: Any) -> Any:
    return cute.arch.fmax(a, b)


@dataclass(frozen=True)
class RowGroups:
    """How a block's threads share rows: ``groups`` rows at a time, ``threads`` neighbouring threads to each.

    Attributes:
        threads: A power of two or a multiple of 128, at most 1024.
        groups: Rows at a time; 1 with a cluster.
        ctas: CTAs of a cluster that share the row, a power of two. They call `start` early, `wait_for_others` before
            the first reduction, and use each slot once: barriers of the cluster would make every reduction wait for all
            of memory, and empty the L1 cache.
    """

    threads: int
    groups: int
    ctas: int = 1

    @property
    def block(self) -> int:
        """Threads of the block."""
        return self.threads * self.groups

    def shared_words(self, values: int = 1) -> int:
        """Words of shared memory for reductions of ``values`` values at once, both slots counted."""
        return 2 * values * (self._warps() + self._mailboxes()) + self._barriers() // 4

    def _warps(self) -> int:
        return max(self.block // _WARP, 4)

    def _mailboxes(self) -> int:
        return max(self.ctas, 4) if self.ctas > 1 else 0

    def _barriers(self) -> int:
        """Bytes before all else: a barrier for each slot."""
        return 16 if self.ctas > 1 else 0

    def start(self, shared: Any) -> None:
        """Set the barriers and tell the cluster's other CTAs that this one has started."""
        _set_barriers(shared)
        cute.arch.cluster_arrive_relaxed()

    def wait_for_others(self) -> None:
        """Wait until all CTAs of the cluster have started: their shared memory may be written."""
        cute.arch.cluster_wait()

    def place(self) -> tuple[Int32, Int32]:
        """This thread's group and its position in the row."""
        thread = cute.arch.thread_idx()[0]
        return thread // self.threads, thread % self.threads

    def sum(self, values: list[Any], shared: Any, slot: Any) -> list[Float32]:
        """Each value's sum over the row's threads, in all of them. Every thread of the block takes part.

        Args:
            values: This thread's parts.
            shared: Address of `shared_words` words.
            slot: 0 and 1 in turn: two reductions in a row use different words, so one barrier each is enough.
        """
        return self._reduce(self.threads, values, shared, slot, _add)

    def maximum(self, value: Any, shared: Any, slot: Any) -> Float32:
        """The maximum over the row's threads, NaN left out, in all of them; arguments as in `sum`."""
        return self._reduce(self.threads, [value], shared, slot, _maximum)[0]

    def warp_maximum(self, value: Any) -> Float32:
        """The maximum over the row's threads in this warp, NaN left out, in all of them."""
        return _in_warp(self.threads, [value], _maximum)[0]

    def _reduce(
        self, threads: int, values: list[Any], shared: Any, slot: Any, combine: Callable[[Any, Any], Any]
    ) -> list[Float32]:
        values = _in_warp(threads, values, combine)
        size = len(values) * (self._warps() + self._mailboxes()) * 4
        base = Int32(shared) + self._barriers() + Int32(slot) * size
        if threads > _WARP:
            values = _across_warps(threads, self._warps(), values, base, combine)
        if self.ctas > 1:
            boxes = base + len(values) * self._warps() * 4
            values = _across_ctas(self.ctas, values, boxes, Int32(shared) + Int32(slot) * 8, combine)
        return values


def _in_warp(threads: int, values: list[Any], combine: Callable[[Any, Any], Any]) -> list[Any]:
    offset = min(threads, _WARP) // 2
    while offset:
        values = [combine(value, cute.arch.shuffle_sync_bfly(value, offset)) for value in values]
        offset //= 2
    return values


def _in_order(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [combine(low, high) for low, high in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _across_warps(
    threads: int, all_warps: int, values: list[Any], base: Int32, combine: Callable[[Any, Any], Any]
) -> list[Any]:
    thread = cute.arch.thread_idx()[0]
    warps = threads // _WARP
    _publish(thread, values, base, all_warps)
    cute.arch.sync_threads()
    first = thread // threads * warps
    width = min(warps, 4)
    results = []
    for index in range(len(values)):
        at = base + index * all_warps * 4 + first * 4
        parts = [part for start in range(0, warps, width) for part in load_shared(at + start * 4, width, Float32)]
        results.append(_in_order(parts, combine))
    return results


def _across_ctas(
    ctas: int, values: list[Any], mailbox: Int32, barrier: Int32, combine: Callable[[Any, Any], Any]
) -> list[Any]:
    boxes = max(ctas, 4)
    _send(cute.arch.thread_idx()[0], values, mailbox, barrier, ctas, boxes)
    distributed.wait(barrier, 0)
    results = []
    for index in range(len(values)):
        at = mailbox + index * boxes * 4
        parts = [part for start in range(0, boxes, 4) for part in load_shared(at + start * 4, 4, Float32)]
        results.append(_in_order(parts[:ctas], combine))
    return results


@cute.jit
def _set_barriers(shared: Int32) -> None:
    if cute.arch.thread_idx()[0] == 0:
        for slot in cutlass.range_constexpr(2):
            distributed.set_barrier(shared + 8 * slot)
        distributed.barriers_are_set()


@cute.jit
def _publish(thread: Int32, values: cutlass.Constexpr, base: Int32, all_warps: cutlass.Constexpr) -> None:
    if thread % _WARP == 0:
        for index in cutlass.range_constexpr(len(values)):
            store_shared(base + index * all_warps * 4 + thread // _WARP * 4, [values[index]], 4)


@cute.jit
def _send(
    thread: Int32,
    values: cutlass.Constexpr,
    mailbox: Int32,
    barrier: Int32,
    ctas: cutlass.Constexpr,
    boxes: cutlass.Constexpr,
) -> None:
    """Thread r writes this CTA's values into the mailbox of the cluster's CTA r."""
    if thread == 0:
        distributed.announce(barrier, 4 * ctas * len(values))
    if thread < ctas:
        rank = cute.arch.block_idx()[0] % ctas  # the DSL's rank in a cluster divides by its run-time size
        for index in cutlass.range_constexpr(len(values)):
            place = distributed.remote_address(mailbox + (index * boxes + rank) * 4, thread)
            distributed.send(place, values[index], distributed.remote_address(barrier, thread))
