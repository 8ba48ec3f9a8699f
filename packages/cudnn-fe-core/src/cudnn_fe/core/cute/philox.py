"""Philox4x32-10 (Salmon et al., 2011): four random words from a counter and a key, in registers."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Uint32, Uint64

__all__ = ["philox4x32"]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> list[Int32]:
    """The four words of a counter under a key; both as 32-bit patterns.

    Plain arithmetic, which the compiler shares among calls whose counters differ in one word: of forty multiplications
    and xors, six are then the same in the first three rounds.
    """
    words = [Uint32(word) for word in counter]
    for index in range(_ROUNDS):
        keys = [Uint32(part) + Uint32(step * index & 0xFFFFFFFF) for part, step in zip(key, _WEYL, strict=True)]
        (low, high), (other_low, other_high) = (
            _product(words[2 * which], factor) for which, factor in enumerate(_MULTIPLIERS)
        )
        words = [other_high ^ words[1] ^ keys[0], other_low, high ^ words[3] ^ keys[1], low]
    return [Int32(word) for word in words]


def _product(word: Any, factor: int) -> tuple[Any, Any]:
    """Low and high half."""
    product = Uint64(word) * Uint64(factor)
    return Uint32(product), Uint32(product >> 32)
