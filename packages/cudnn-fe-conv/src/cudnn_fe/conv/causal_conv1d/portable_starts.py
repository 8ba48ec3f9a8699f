"""Where packed sequences start, one bit a token: two loads and a few ors say what a vector may not reach."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.portable_parts import THREADS, ceil_div, zeros
from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["Starts", "blocked_after", "blocked_before", "starts_around", "unless_blocked"]

_BITS = 32


class Starts:
    """Fills the bits of whole words: bit t + 32 says whether a sequence other than the first starts at token t."""

    @cute.jit
    def launch(self, stream: cuda.CUstream, offsets: cute.Tensor, starts: cute.Tensor) -> None:
        """One thread a word."""
        grid = (ceil_div(Int32(starts.shape[0]), THREADS), 1, 1)
        self.kernel(offsets, starts).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, offsets: cute.Tensor, starts: cute.Tensor) -> None:
        """A word's starts, from the first one in it, which a binary search finds."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        word = block * THREADS + thread
        if word < Int32(starts.shape[0]):
            first, count = (word - 1) * _BITS, Int32(offsets.shape[0]) - 1
            low, high = Int32(1), Int32(count)
            while low < high:
                middle = (low + high) >> 1
                if Int32(offsets[middle]) < first:
                    low = middle + 1
                else:
                    high = middle
            bits = Int32(0)
            while low < count and Int32(offsets[low]) < first + _BITS:
                bits = bits | (Int32(1) << ((Int32(offsets[low]) - first) & (_BITS - 1)))
                low += 1
            starts[word] = bits


def starts_around(starts: Any, token: Any, time: Any, width: int) -> Int32:
    """The bits of the tokens from W-1 before a vector on; those of no vector past the last token mean nothing."""
    place = cutlass.min(token, time) + (_BITS - (width - 1))
    low, high = (Int32(starts[(place >> 5) + index]) for index in range(2))
    (bits,) = assemble("shf.r.wrap.b32 $0, $1, $2, $3;", [Int32], [low, high, place])
    return bits


def blocked_before(bits: Any, width: int) -> list[Any]:
    """For each lag from 1 to W-1: bit e says whether a sequence starts behind token e - lag, and not behind token e."""
    words = [bits >> (width - 1)]
    for lag in range(1, width - 1):
        words.append(words[-1] | (bits >> (width - 1 - lag)))
    return words[: width - 1]


def blocked_after(bits: Any, width: int) -> list[Any]:
    """For each lag from 1 to W-1: bit e says whether a sequence starts behind token e, and not behind token e + lag."""
    words = [bits >> width]
    for lag in range(2, width):
        words.append(words[-1] | (bits >> (width - 1 + lag)))
    return words[: width - 1]


def unless_blocked(spec: Any, words: list[Any], e: int, values: list[Any]) -> list[Any]:
    """Values of lags 0 to W-1 from token ``e``, zeros where another sequence lies there."""
    kept = [values[0]]
    for word, value in zip(words, values[1:], strict=True):
        kept.append(cutlass.select_((word & (1 << e)) == 0, value, zeros(spec, 1)[0]))
    return kept
