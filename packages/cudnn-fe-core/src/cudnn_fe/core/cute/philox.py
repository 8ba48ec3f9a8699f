"""Philox4x32-10 (Salmon et al., 2011): four random words from a counter and a key, in registers."""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["philox4x32"]

_ROUNDS = 10
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUND = (
    "{ .reg .b64 p, q; .reg .b32 h, g, t; mul.wide.u32 p, $4, 0xD2511F53; mul.wide.u32 q, $6, 0xCD9E8D57; "
    "mov.b64 {$3, h}, p; mov.b64 {$1, g}, q; "
    "xor.b32 t, g, $5; xor.b32 $0, t, $8; xor.b32 t, h, $7; xor.b32 $2, t, $9; }"
)


def _signed(word: int) -> int:
    return (word & 0xFFFFFFFF) - (word & 0x80000000) * 2


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> list[Int32]:
    """The four words of a counter under a key; both as 32-bit patterns."""
    words = [Int32(word) for word in counter]
    for index in range(_ROUNDS):
        keys = [Int32(part) + _signed(step * index) for part, step in zip(key, _WEYL, strict=True)]
        words = assemble(_ROUND, [Int32] * 4, [*words, *keys])
    return words
