"""Floats that rounding code gets wrong: every 16-bit pattern, subnormals, specials, and neighbours of boundaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["all_bfloat16", "all_float16", "float32_patterns", "float32_with_neighbours"]


def all_bfloat16() -> NDArray[Any]:
    """Every bfloat16, in order of its bits."""
    return np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)


def all_float16() -> NDArray[np.float16]:
    """Every float16, in order of its bits."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16)


def float32_patterns() -> NDArray[np.float32]:
    """Every value of the upper 16 bits with lower bits at, beside and between the boundaries of shorter formats."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([upper | low for low in (0, 1, 0x0FFF, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(
        np.float32
    )


def float32_with_neighbours(values: Iterable[float]) -> NDArray[np.float32]:
    """The values, which must be float32 values, their next smaller and larger float32, and the negatives of all."""
    middle = np.fromiter(values, np.float32)
    around = [middle, np.nextafter(middle, np.float32(-np.inf)), np.nextafter(middle, np.float32(np.inf))]
    positive = np.concatenate(around)
    return np.concatenate([positive, -positive])
