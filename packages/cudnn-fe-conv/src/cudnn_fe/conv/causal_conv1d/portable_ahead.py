"""Loads that are issued a turn before their values are used, so that memory works while a thread does."""

from __future__ import annotations

from typing import Any

from cutlass import BFloat16, Float32, Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.portable_parts import Typed, View, fill, wide_type
from cudnn_fe.core.cute.vectors import load_words

__all__ = ["Ahead", "History", "arrived", "fetch", "fetch_history", "history_of", "widen_words"]


class Ahead:
    """Vectors on their way from memory: loads that are issued a turn before their values are used.

    Attributes:
        dtype: Element type.
        rows: Number of vectors.
        count: Elements of one.
        size: Words of one.
        held: The registers, as words.
    """

    def __init__(self, source: View, rows: int, count: int) -> None:
        self.dtype, self.rows, self.count = source.dtype, rows, count
        self.size = max(count * source.dtype.width // 32, 1)
        self.held = cute.make_rmem_tensor(rows * self.size, Int32)
        fill(self.held, 0, [Int32(0)] * (rows * self.size))


def fetch(ahead: Ahead, address: Any, step: Any, valid: Any = None) -> None:
    """Issue the loads of vectors ``step`` bytes apart; zeros, and nothing is read, where ``valid`` is false."""
    for row in range(ahead.rows):
        held = Int32(1) if valid is None else valid[row]
        fill(ahead.held, row * ahead.size, load_words(ahead.dtype, address + row * step, ahead.count, held))


def arrived(ahead: Ahead) -> list[Any]:
    """The words that were fetched, to be taken before the next are."""
    return [ahead.held[index] for index in range(ahead.rows * ahead.size)]


def widen_words(spec: Typed, ahead: Ahead, words: list[Any]) -> list[list[Any]]:
    """Words as rows of wide values."""
    wide, step = wide_type(spec.x_dtype), ahead.size * 32 // ahead.dtype.width
    if ahead.dtype is BFloat16:
        # The halves of a word at an instruction each, where the compiler's conversion takes one and a half.
        words = [half for word in words for half in (word << 16, word & -65536)]
    # Registers are made of the finer type: one of the coarser, seen as the finer, has a stride of zero.
    if ahead.dtype is not BFloat16 and ahead.dtype.width < Int32.width:
        elements = cute.make_rmem_tensor(ahead.rows * step, ahead.dtype)
        fill(cute.recast_tensor(elements, Int32), 0, words)
    else:
        held = cute.make_rmem_tensor(len(words), Int32)
        fill(held, 0, words)
        elements = cute.recast_tensor(held, Float32 if ahead.dtype is BFloat16 else ahead.dtype)
    made = cute.make_rmem_tensor(ahead.rows * step, wide)
    made.store(elements.load().to(wide))
    return [[made[row * step + i] for i in range(ahead.count)] for row in range(ahead.rows)]


class History:
    """The W-1 samples before each of some vectors, on their way: one load if they lie in an aligned piece.

    Attributes:
        ahead: The loads.
        back: Samples that they go back.
    """

    def __init__(self, spec: ConvSpec, source: Any) -> None:
        self.back = 1
        while self.back < spec.width - 1:
            self.back *= 2
        self.whole = self.back <= spec.vector
        pieces, count = (1, self.back) if self.whole else (spec.width - 1, 1)
        self.ahead = [Ahead(source, spec.unroll, count) for _ in range(pieces if spec.width > 1 else 0)]


def fetch_history(
    spec: ConvSpec, history: History, address: Any, step: Any, size: Any, tokens: list[Any], stop: Any
) -> None:
    """Issue the loads of what lies before vectors; zeros before the first token of all, and for none from ``stop`` on.

    Args:
        spec: What is compiled.
        history: Where to.
        address: Of the first vector.
        step: Bytes between two of them.
        size: Bytes between neighbours in time.
        tokens: Their first tokens.
        stop: One past the last token.
    """
    for piece, ahead in enumerate(history.ahead):
        lag = history.back if history.whole else spec.width - 1 - piece
        fetch(ahead, address - lag * size, step, [_both(token >= lag, token < stop) for token in tokens])


def _both(one: Any, other: Any) -> Int32:
    return Int32(one) & Int32(other)


def history_of(spec: ConvSpec, history: History, words: list[list[Any]]) -> list[list[Any]]:
    """The W-1 samples before each vector, oldest first."""
    rows = [widen_words(spec, ahead, piece) for ahead, piece in zip(history.ahead, words, strict=True)]
    if history.whole:
        return [row[history.back - (spec.width - 1) :] for row in rows[0]] if rows else [[] for _ in range(spec.unroll)]
    return [[piece[row][0] for piece in rows] for row in range(spec.unroll)]
