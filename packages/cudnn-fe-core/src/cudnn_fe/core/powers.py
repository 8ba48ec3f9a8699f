"""Powers of two, in which kernels share work among threads and access memory."""

from __future__ import annotations

__all__ = ["common_power_of_two", "next_power_of_two"]


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count``."""
    return 1 << max(count - 1, 0).bit_length()


def common_power_of_two(most: int, *counts: int) -> int:
    """The largest power of two, up to the power ``most``, that divides all ``counts``; every one divides 0."""
    return min((most, *(count & -count or most for count in counts)))
