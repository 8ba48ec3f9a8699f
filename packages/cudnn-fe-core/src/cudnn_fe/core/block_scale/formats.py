"""Which element format goes with which scale format, and how many elements share a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cudnn_fe.core.codecs import E2M1, E4M3, E5M2, E8M0, Format, format_of
from cudnn_fe.core.errors import DTypeError, OptionError

__all__ = [
    "BFLOAT16_NOTE",
    "BLOCK_FORMATS",
    "MXFP4",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "NVFP4",
    "BlockFormat",
    "block_format",
]

BFLOAT16_NOTE = (
    "Kernels dequantise operands to bfloat16, multiply with float32 sums, and make the results in a second pass. "
    "They need memory for these: two bytes an element of the operands, four of the product. "
    "Products are exact, except of MXFP8 values whose scale byte is below 3 (E4M3) or 10 (E5M2): these reach into "
    "bfloat16's subnormals and err by up to half of 2^-133."
)
"""What the documentation of block-scaled products says of their kernels."""


@dataclass(frozen=True)
class BlockFormat:
    """A block-scaled format: ``block`` elements along the quantised axis share one scale.

    Attributes:
        element: Format of an element.
        scale: Format of a scale.
        block: Elements per scale.
    """

    element: Format
    scale: Format
    block: int


MXFP8_E4M3 = BlockFormat(E4M3, E8M0, 32)
"""OCP MX v1.0 MXFP8 with E4M3 elements."""
MXFP8_E5M2 = BlockFormat(E5M2, E8M0, 32)
"""OCP MX v1.0 MXFP8 with E5M2 elements."""
MXFP4 = BlockFormat(E2M1, E8M0, 32)
"""OCP MX v1.0 MXFP4."""
NVFP4 = BlockFormat(E2M1, E4M3, 16)
"""FP4 elements with an E4M3 scale per 16."""

BLOCK_FORMATS: Mapping[str, BlockFormat] = MappingProxyType(
    {"mxfp8_e4m3": MXFP8_E4M3, "mxfp8_e5m2": MXFP8_E5M2, "mxfp4": MXFP4, "nvfp4": NVFP4}
)
"""The named formats."""

_ALLOWED = frozenset({*BLOCK_FORMATS.values(), BlockFormat(E2M1, E8M0, 16)})


def block_format(element: Any, scale: Any, block: int) -> BlockFormat:
    """The format of an operand with these element and scale types: a named one, or FP4 with an E8M0 scale per 16.

    Args:
        element: A `Format` or any spelling of its dtype; ``"uint8"`` means packed FP4.
        scale: The same for scales; ``"int8"`` and ``"uint8"`` mean E8M0 bytes.
        block: Elements per scale.

    Returns:
        The record.

    Raises:
        DTypeError: No operation reads elements with such scales.
        OptionError: ``block`` is neither 16 nor 32.

    Example:
        >>> block_format("float4_e2m1fn", "float8_e4m3fn", 16) is NVFP4
        True

    The combinations are those of OCP MX v1.0, and the NVFP4 ones of cudnn-frontend 1.32.
    """
    if block not in (16, 32):
        raise OptionError(
            "sf_vec_size", got=repr(block), wanted="16 or 32", remedy="say how many elements share a scale"
        )
    elements = E2M1 if element == "uint8" else format_of(element, operand="element")
    scales = E8M0 if scale in ("int8", "uint8") else format_of(scale, operand="scale")
    for known in (*BLOCK_FORMATS.values(), *_ALLOWED):
        if (known.element, known.scale, known.block) == (elements, scales, block):
            return known
    raise DTypeError(
        "scale",
        got=f"{elements.name} elements with a {scales.name} scale per {block}",
        wanted="FP8 with float8_e8m0fnu per 32, or FP4 with float8_e8m0fnu per 16 or 32 or float8_e4m3fn per 16",
        remedy="set sf_vec_size and the scales' dtype to one of these",
    )
