"""What quantised blocks round, as values: with a factor per tensor, and in blocks along channels or along tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from cudnn_fe.attention.arrays import astype, round_through, take, wide
from cudnn_fe.attention.fake_quant import nvfp4_values
from cudnn_fe.attention.sequences import rows_of
from cudnn_fe.core.arrays import maximum_of
from cudnn_fe.core.block_scale import MXFP4, MXFP8_E4M3, BlockFormat, dequantize, quantize, unswizzle_scales
from cudnn_fe.core.codecs import decode, to_codes, unpack_fp4
from cudnn_fe.core.codecs.bits import float32_bits

__all__ = ["CODES", "LIFT", "along_tokens", "codes_of", "fp4_values", "mx_values", "scaled", "step_below"]

CODES = "float8_e4m3fn"
LIFT = 256.0  # of probabilities with a factor per tensor: E4M3 then keeps what is 2**-17 of the largest
_BLOCK = 32
_PAIR = "float4_e2m1fn"
_MANTISSA, _LARGEST_MANTISSA, _LARGEST_EXPONENT = 0x7FFFFF, 0x600000, 8  # of 448 = 1.75 * 2**8


def scaled(xp: Any, x: Any, scales: Any, block: int = _BLOCK, kind: str = "float8_e8m0fnu", *, fp4: bool) -> Any:
    """The values of codes, with a factor of type ``kind`` per ``block`` channels where there are packed scales."""
    if fp4:
        codes = to_codes(x)
        values = decode(unpack_fp4(codes) if codes.shape[-1] == x.shape[-1] else codes, _PAIR)
    else:
        values = wide(x)
    if scales is None:
        return values
    plain = unswizzle_scales(to_codes(scales), prod(values.shape[:-1]), -(-values.shape[-1] // block))
    factors = xp.repeat(decode(plain[0], kind), block, axis=1)[:, : values.shape[-1]]
    return values * xp.reshape(factors, values.shape)


def mx_values(x: Any, axis: int, format: BlockFormat = MXFP8_E4M3) -> Any:
    """``x`` in MXFP8, or another MX format, along an axis."""
    codes, scales, _ = quantize(x, format, axis=axis, recipe="power_of_two")
    return dequantize(codes, scales, format, axis=axis)


def fp4_values(xp: Any, x: Any, name: str) -> Any:
    """``x`` in ``"nvfp4"`` or ``"mxfp4"`` along its last axis."""
    return nvfp4_values(xp, x, reciprocal=True) if name == "nvfp4" else mx_values(x, -1, MXFP4)


@dataclass(frozen=True)
class Slots:
    """Packed sequences laid out so that each starts a block: where tokens go, and where slots come from.

    Attributes:
        of_token: The slot of every token (T,).
        token: The token of every slot.
        valid: Whether there is one.
    """

    of_token: Any
    token: Any
    valid: Any


def _slots(xp: Any, offsets: Any, tokens: int) -> Slots:
    lengths = offsets[1:] - offsets[:-1]
    ends = xp.cumulative_sum((lengths + _BLOCK - 1) // _BLOCK * _BLOCK, axis=0)
    starts = astype(xp.concat((xp.zeros_like(ends[:1]), ends)), "int32")
    count = -(-tokens // _BLOCK) * _BLOCK + _BLOCK * lengths.shape[0]
    slots = rows_of(xp, starts, count, lengths)
    rows = rows_of(xp, offsets, tokens)
    token = take(xp, offsets, slots.sequence, 0) + slots.position
    return Slots(take(xp, starts, rows.sequence, 0) + rows.position, token, slots.valid)


def along_tokens(xp: Any, x: Any, offsets: Any) -> Any:
    """(B, H, S, D) in MXFP8 along S: by batches, or by the packed sequences that start at ``offsets``."""
    if offsets is None or 0 in x.shape:
        return mx_values(x, -2)
    slots = _slots(xp, offsets, x.shape[2])
    spread = take(xp, x, slots.token, 2)
    spread = xp.where(slots.valid[:, None], spread, xp.zeros_like(spread))
    return take(xp, mx_values(spread, -2), slots.of_token, 2)


def step_below(xp: Any, x: Any, margin: int) -> tuple[Any, Any]:
    """``(scale, amax)`` (1,) of a tensor: the largest power of two that keeps ``x scale`` in E4M3, less a margin."""
    amax = xp.reshape(xp.sum(x) if 0 in x.shape else maximum_of(xp, xp.abs(x)), (1,))
    bits = float32_bits(xp, amax)
    above = astype((bits & _MANTISSA) > _LARGEST_MANTISSA, "int32")
    power = _LARGEST_EXPONENT - ((bits >> 23) - 127) - above - margin
    power = xp.clip(power, -126, 127)  # the smallest amax would ask for more than float32 holds
    scale = astype((power + 127) << 23, "int32").view(xp.float32)
    return xp.where(amax == 0, xp.ones_like(amax), scale), amax


def codes_of(x: Any, scale: Any) -> Any:
    """E4M3 codes of ``x scale``, as values."""
    return round_through(x * scale, CODES)
