"""Powers of two that bound or divide counts."""

from __future__ import annotations

import pytest

from cudnn_fe.core.powers import common_power_of_two, next_power_of_two


@pytest.mark.parametrize(("count", "wanted"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_the_next_power(count: int, wanted: int) -> None:
    assert next_power_of_two(count) == wanted


@pytest.mark.parametrize(
    ("most", "counts", "wanted"),
    [(16, (), 16), (16, (0,), 16), (16, (48,), 16), (16, (24, 40), 8), (8, (0, 6), 2), (8, (7, 64), 1), (4, (64,), 4)],
)
def test_the_largest_common_power(most: int, counts: tuple[int, ...], wanted: int) -> None:
    assert common_power_of_two(most, *counts) == wanted
