"""Where a token stands in its sequence."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.portable_parts import THREADS
from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["Cursor", "advance", "check_offsets", "copy_cursor", "seek", "span_of"]


class Cursor:
    """The sequence that a token is of: a register tensor (number, first token, end) that only moves forward.

    Attributes:
        packed: Whether offsets say where sequences lie; else each row is one.
        offsets: The offsets.
        count: Number of packed sequences.
        time: Number of tokens.
        place: The registers.
    """

    def __init__(self, packed: bool, offsets: Any, row: Any, time: Any) -> None:
        self.packed, self.offsets, self.time = packed, offsets, Int32(time)
        self.count = Int32(offsets.shape[0]) - 1 if packed else None
        self.place = cute.make_rmem_tensor(3, Int32)
        self.place[0], self.place[1], self.place[2] = Int32(row), Int32(0), self.time

    @property
    def sequence(self) -> Any:
        """Number of the sequence."""
        return self.place[0]

    @property
    def start(self) -> Any:
        """Its first token."""
        return self.place[1]

    @property
    def end(self) -> Any:
        """One past its last token."""
        return self.place[2]


def copy_cursor(source: Cursor, target: Cursor) -> None:
    """Put one cursor where another stands."""
    for index in range(3):
        target.place[index] = source.place[index]


@cute.jit
def seek(cursor: Any, token: Int32) -> None:
    """Go to the sequence of a token."""
    if cutlass.const_expr(cursor.packed):
        low, high = Int32(0), Int32(cursor.count)
        while high - low > 1:
            middle = (low + high) >> 1
            if Int32(cursor.offsets[middle]) <= token:
                low = middle
            else:
                high = middle
        _enter(cursor, low, token)


@cute.jit
def advance(cursor: Any, token: Int32) -> None:
    """Go on to the sequence of a token at or after the last one."""
    if cutlass.const_expr(cursor.packed):
        if token >= cursor.end:
            number, end = Int32(cursor.sequence), Int32(cursor.end)
            while token >= end and number < cursor.count - 1:
                number += 1
                end = Int32(cursor.offsets[number + 1])
            _enter(cursor, number, token)


def _enter(cursor: Any, number: Any, token: Any) -> None:
    cursor.place[0] = number
    # A bad offset must not become a bad address.
    cursor.place[1] = cutlass.max(cutlass.min(Int32(cursor.offsets[number]), token), Int32(0))
    cursor.place[2] = Int32(cursor.offsets[number + 1])


def span_of(spec: Any, offsets: Any, sequence: Any, time: Any) -> tuple[Any, Any, Any]:
    """Row, first token and end of a sequence."""
    if not spec.packed:
        return sequence, Int32(0), time
    # Bad offsets trap elsewhere; here they must not become bad addresses.
    end = cutlass.max(cutlass.min(Int32(offsets[sequence + 1]), time), Int32(0))
    return Int32(0), cutlass.max(cutlass.min(Int32(offsets[sequence]), end), Int32(0)), end


@cute.jit
def check_offsets(offsets: Any, time: Int32) -> None:
    """One block's threads trap unless the offsets run from 0 to ``time`` without decreasing."""
    thread, _, _ = cute.arch.thread_idx()
    count = Int32(offsets.shape[0]) - 1
    bad = Int32(offsets[0]) != 0 or Int32(offsets[count]) != time
    for turn in cutlass.range((count - thread + THREADS - 1) // THREADS, unroll=1):
        index = thread + turn * THREADS
        bad = bad or Int32(offsets[index + 1]) < Int32(offsets[index])
    if bad:
        assemble("trap;", [], [])
