"""The dropout contract: planes of random words; threshold and scale from the ratio, key words from the seed."""

from __future__ import annotations

import math
from typing import Any

from cudnn_fe.core.errors import OptionError

__all__ = ["GATE", "PRODUCT", "Dropout", "X", "checked_ratio", "dropout", "key_words", "require_mask", "signed_word"]

PRODUCT, X, GATE = 0, 1, 2  # planes of the counter, and bits of the mask

Dropout = tuple[float, int]
"""Scale of what is kept, and the smallest 32-bit word that is kept."""


def checked_ratio(ratio: Any) -> float:
    """The ratio as float32; raises OptionError unless it is in [0, 1) before and after that rounding."""
    if not isinstance(ratio, int | float) or not 0 <= ratio < 1 or float32(ratio) >= 1:
        raise OptionError("dropout_ratio", got=repr(ratio), wanted="in [0, 1), also as float32", remedy="pass e.g. 0.1")
    return float32(ratio)


def require_mask(mask: Any, ratio: float) -> None:
    """Raises OptionError unless there is a mask exactly where something is dropped."""
    if (mask is None) != (ratio == 0):
        given = "None" if mask is None else "a mask"
        raise OptionError(
            "mask_tensor",
            got=f"{given} with dropout_ratio = {ratio}",
            wanted="a mask exactly when something was dropped",
            remedy="pass what the forward returned",
        )


def float32(value: float) -> float:
    """``value``, at least 0, as float32 rounds it; without NumPy, whose calls torch.compile takes for tensors."""
    if value == 0:
        return 0.0
    _, exponent = math.frexp(value)
    digits = min(24, exponent + 149)
    return math.ldexp(round(math.ldexp(value, digits - exponent)), exponent - digits)


def dropout(ratio: float) -> Dropout:
    """Scale and threshold of a float32 ratio above 0.

    A word is kept when, as float32 times 2**-32, it exceeds the ratio; the product grows with the word.
    """
    low, high = 0, 2**32
    while low < high:
        middle = (low + high) // 2
        if float32(middle) * 2.0**-32 > ratio:
            high = middle
        else:
            low = middle + 1
    return float32(1.0 / float32(1.0 - ratio)), low


def key_words(seed: Any) -> tuple[int, int]:
    """Low and high word of a seed, as signed 32-bit integers; raises OptionError unless it is an int64."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**63:
        raise OptionError("seed", got=repr(seed), wanted="an int in [-2**63, 2**63)", remedy="reduce it to 64 bits")
    return signed_word(seed), signed_word(seed >> 32)


def signed_word(value: int) -> int:
    """The low 32 bits as a signed integer."""
    word = value & 0xFFFFFFFF
    return word - 2**32 if word >= 2**31 else word
