"""Values as a narrow format keeps them: quantised and decoded at once."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import divide
from cudnn_fe.core.arrays import maximum_of
from cudnn_fe.core.codecs import decode, encode

__all__ = ["nvfp4_values"]

_BLOCK, _LARGEST, _LEAST = 16, 6.0, 2.0**-9
_SIXTH = 11184811 * 2.0**-26  # the float32 next to 1/6
_SCALE, _CODE = "float8_e4m3fn", "float4_e2m1fn"


def nvfp4_values(xp: Any, x: Any, *, reciprocal: bool = False) -> Any:
    """``x`` (float32) in NVFP4 along its last axis: E2M1 codes with an E4M3 scale per 16, without a global scale.

    The scale is ``max(|x|) / 6``, at least 2**-9, rounded to nearest even; codes are ``x / scale``, rounded likewise.
    Both saturate. A last group that is shorter counts as if filled with zeros. With ``reciprocal`` the largest
    magnitude is multiplied by the float32 next to 1/6 instead, which rounds otherwise.
    """
    count = x.shape[-1]
    if 0 in x.shape:
        return x
    missing = -count % _BLOCK
    if missing:
        zeros = xp.zeros_like(xp.concat([x[..., :1]] * missing, axis=-1))
        x = xp.concat((x, zeros), axis=-1)
    groups = xp.reshape(x, (*x.shape[:-1], x.shape[-1] // _BLOCK, _BLOCK))
    amax = maximum_of(xp, xp.abs(groups), -1)[..., None]
    amax = amax * _SIXTH if reciprocal else divide(xp, amax, _LARGEST)
    scales = decode(encode(xp.maximum(amax, xp.full_like(amax, _LEAST)), _SCALE), _SCALE)
    values = decode(encode(divide(xp, groups, scales), _CODE), _CODE) * scales
    return xp.reshape(values, x.shape)[..., :count]
