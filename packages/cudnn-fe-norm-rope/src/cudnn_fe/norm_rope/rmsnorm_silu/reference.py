"""The definition of RMSNorm + SiLU, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.codecs import encode, from_codes, pack_fp4
from cudnn_fe.norm_rope.arrays import maximum_without_nan, to_bfloat16, wide

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.rmsnorm_silu.op import RmsNormSilu

__all__ = ["rmsnorm_silu"]

_LEAST_SCALE = 1.17549435e-38


def rmsnorm_silu(problem: RmsNormSilu, xp: Any, x: Any, weight: Any, eps: float) -> tuple[Any, ...]:
    """All in float32; rounded once."""
    rows, columns = problem.extents
    given = wide(xp, xp.reshape(x, (rows, columns)))
    mean_square = xp.sum(given * given, axis=1, keepdims=True) / columns
    y = wide(xp, xp.reshape(weight, (columns,))) * (1.0 / xp.sqrt(mean_square + eps) * given)
    z = y / (1.0 + xp.exp(-y))
    name = problem.out_dtype.name
    if name == "bfloat16":
        return (xp.reshape(to_bfloat16(z), x.shape),)
    if name == "float8_e4m3fn":
        return (xp.reshape(from_codes(encode(z, name), name), x.shape),)
    blocks = xp.reshape(z, (rows, columns // 16, 16))
    scale = maximum_without_nan(xp, blocks, 2) / 6.0
    scale = xp.where(scale < _LEAST_SCALE, xp.full_like(scale, _LEAST_SCALE), scale)
    codes = encode(xp.reshape(blocks / scale[:, :, None], (rows, columns)), name)
    return pack_fp4(codes), from_codes(encode(scale, "float8_e4m3fn"), "float8_e4m3fn")
