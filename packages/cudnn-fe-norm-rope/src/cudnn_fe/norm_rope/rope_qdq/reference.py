"""The definition of tail RoPE + quantise-dequantise, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudnn_fe.core.codecs import decode, encode
from cudnn_fe.norm_rope.arrays import maximum_without_nan, to_bfloat16, wide
from cudnn_fe.norm_rope.rope_tail.reference import rotate_tail

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.rope_qdq.op import RopeQdq

__all__ = ["rope_qdq"]

_LIMIT = {"fp4": 6.0, "fp8": 448.0}
_FORMAT = {"fp4": "float4_e2m1fn", "fp8": "float8_e4m3fn"}
_FLOOR = {"fp4": 6.0 * 2.0**-126, "fp8": 1e-4}
_E4M3_FLOOR = 6.0 * 2.0**-9


def rope_qdq(problem: RopeQdq, xp: Any, x: Any, cache: Any, positions: Any) -> tuple[Any]:
    """The rotation rounds to bfloat16; every channel is then rounded on its group's grid."""
    angles = xp.take(cache, positions, axis=0)
    shape = (x.shape[0], 1, 32) if x.shape[-1] == 128 else (*x.shape[:-1], 32)
    turned = rotate_tail(xp, x, xp.reshape(angles[:, :32], shape), xp.reshape(angles[:, 32:], shape))
    groups = wide(xp, xp.reshape(turned, (-1, problem.group_size)))
    largest = maximum_without_nan(xp, groups, 1)[:, None]
    if problem.scale_format == "e4m3":
        quantised = _with_e4m3_scale(xp, groups, largest)
    else:
        quantised = _with_power_of_two(xp, groups, largest, problem.quantization)
    return (to_bfloat16(xp.reshape(quantised, x.shape)),)


def _at_least(xp: Any, x: Any, floor: float) -> Any:
    return xp.where(x < float(np.float32(floor)), xp.full_like(x, float(np.float32(floor))), x)


def _with_power_of_two(xp: Any, groups: Any, largest: Any, name: str) -> Any:
    limit = _LIMIT[name]
    ratio = _at_least(xp, largest, _FLOOR[name]) * float(np.float32(1.0 / limit))
    bits = ratio.view(xp.int32)
    exponent = (bits >> 23) + xp.astype((bits & 0x7FFFFF) != 0, xp.int32)  # up to a power of two
    scale, inverse = (exponent << 23).view(xp.float32), ((254 - exponent) << 23).view(xp.float32)
    return decode(encode(groups * inverse, _FORMAT[name]), _FORMAT[name]) * scale


def _with_e4m3_scale(xp: Any, groups: Any, largest: Any) -> Any:
    ratio = _quotient(xp, _at_least(xp, largest, _E4M3_FLOOR), 6.0)
    scale = decode(encode(ratio, "float8_e4m3fn"), "float8_e4m3fn")
    return decode(encode(_quotient(xp, groups, scale), "float4_e2m1fn"), "float4_e2m1fn") * scale


def _quotient(xp: Any, a: Any, b: Any) -> Any:
    """``a / b`` to 16 bits, for a divisor of up to 4 bits and a dividend of 8.

    Compilers may divide by way of a reciprocal, which misses exact quotients by a unit. Those that a small format could
    tie on have few bits, all others are far from them: both survive this rounding.
    """
    return (((a / b).view(xp.int32) + 0x80) & -0x100).view(xp.float32)
