"""What the bits of packed sequences' starts say of a vector's neighbours, for every placement of starts near it."""

from __future__ import annotations

import random

import pytest

from cudnn_fe.conv.causal_conv1d.kernels import WIDEST
from cudnn_fe.conv.causal_conv1d.portable_starts import blocked_after, blocked_before

VECTOR = 8  # the longest: 16 bytes of 2-byte elements
WINDOW = 7  # tokens whose starts are tried in every combination; those around it start at random


def numbers(bits: int, width: int) -> dict[int, int]:
    """The sequence of each token from W-1 before a vector on, counted up at each start."""
    found, number = {}, 0
    for place in range(32):
        number += bits >> place & 1
        found[place - (width - 1)] = number
    return found


def placements(width: int) -> list[int]:
    """Words of starts as the kernels hold them: signed."""
    generator = random.Random(width)
    words = []
    for _ in range(4):
        at, around = generator.randrange(32 - WINDOW), generator.getrandbits(32) & generator.getrandbits(32)
        around &= ~((2**WINDOW - 1) << at)
        for starts in range(2**WINDOW):
            word = around | starts << at
            words.append(word - (word >> 31 << 32))
    return words


@pytest.mark.parametrize("width", range(1, WIDEST + 1))
def test_a_bit_says_whether_another_sequence_lies_between(width: int) -> None:
    for bits in placements(width):
        before, after, number = blocked_before(bits, width), blocked_after(bits, width), numbers(bits, width)
        assert len(before) == len(after) == width - 1
        for lag in range(1, width):
            for e in range(VECTOR):
                assert (before[lag - 1] >> e & 1) == (number[e - lag] != number[e]), (bits, lag, e)
                assert (after[lag - 1] >> e & 1) == (number[e] != number[e + lag]), (bits, lag, e)
