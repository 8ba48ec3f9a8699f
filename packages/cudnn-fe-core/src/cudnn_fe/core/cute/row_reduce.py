"""Sums and maxima over the threads of a row, in a fixed order: shuffles inside a warp, shared memory across warps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

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
        groups: Rows at a time.
    """

    threads: int
    groups: int

    @property
    def block(self) -> int:
        """Threads of the block."""
        return self.threads * self.groups

    def shared_words(self, values: int = 1) -> int:
        """Words of shared memory for reductions of ``values`` values at once, both slots counted."""
        return 2 * values * max(self.block // _WARP, 4)

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
        return _reduce(self.threads, self.block, values, shared, slot, _add)

    def maximum_of_block(self, value: Any, shared: Any) -> Float32:
        """The maximum over all threads of the block, NaN left out; uses the words of slot 0."""
        return _reduce(self.block, self.block, [value], shared, Int32(0), _maximum)[0]


def _reduce(
    threads: int, block: int, values: list[Any], shared: Any, slot: Any, combine: Callable[[Any, Any], Any]
) -> list[Float32]:
    offset = min(threads, _WARP) // 2
    while offset:
        values = [combine(value, cute.arch.shuffle_sync_bfly(value, offset)) for value in values]
        offset //= 2
    if threads <= _WARP:
        return values
    return _across_warps(threads, block, values, shared, slot, combine)


def _across_warps(
    threads: int, block: int, values: list[Any], shared: Any, slot: Any, combine: Callable[[Any, Any], Any]
) -> list[Float32]:
    thread = cute.arch.thread_idx()[0]
    warps, all_warps = threads // _WARP, max(block // _WARP, 4)
    base = Int32(shared) + Int32(slot) * (len(values) * all_warps * 4)
    _publish(thread, values, base, all_warps)
    cute.arch.sync_threads()
    first = thread // threads * warps
    results = []
    for index in range(len(values)):
        at = base + index * all_warps * 4 + first * 4
        width = min(warps, 4)
        parts = [part for start in range(0, warps, width) for part in load_shared(at + start * 4, width, Float32)]
        while len(parts) > 1:
            odd = parts[len(parts) // 2 * 2 :]
            parts = [combine(low, high) for low, high in zip(parts[::2], parts[1::2], strict=False)] + odd
        results.append(parts[0])
    return results


@cute.jit
def _publish(thread: Int32, values: cutlass.Constexpr, base: Int32, all_warps: cutlass.Constexpr) -> None:
    if thread % _WARP == 0:
        for index in cutlass.range_constexpr(len(values)):
            store_shared(base + index * all_warps * 4 + thread // _WARP * 4, [values[index]], 4)
