"""The definition of the query projection with rotary embedding, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.block_scale import MXFP8_E4M3, dequantize, quantize_rows_and_columns
from cudnn_fe.core.codecs import from_codes, to_bfloat16
from cudnn_fe.gemm.arrays import batched_product

if TYPE_CHECKING:
    from cudnn_fe.gemm.proj_rope.op import GemmProjRope

__all__ = ["gemm_proj_rope", "rotated"]

_HEAD, _PLAIN, _HALF = 192, 128, 32


def gemm_proj_rope(
    problem: GemmProjRope, xp: Any, x: Any, w: Any, cos: Any, sin: Any, x_scale: Any, w_scale: Any
) -> tuple[Any, Any, Any, Any]:
    """``(codes, scales)`` along features, then along tokens, of the rotated projection.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: (T, K).
        w: (N, K), or (K, N).
        cos: (T, 64).
        sin: (T, 64).
        x_scale: (T, K / 32), or None.
        w_scale: (N, K / 32) or (K / 32, N), or None.
    """
    tokens, heads, _ = problem.extents
    if not problem.w_out_in:
        w = xp.permute_dims(w, (1, 0))
        w_scale = None if w_scale is None else xp.permute_dims(w_scale, (1, 0))
    if x_scale is not None:
        x = dequantize(x, x_scale.view(xp.uint8), MXFP8_E4M3)
        w = dequantize(w, w_scale.view(xp.uint8), MXFP8_E4M3)
    z = batched_product(xp, x[:, :, None], w[:, :, None])
    y = astype(to_bfloat16(xp.reshape(z, (tokens, heads, _HEAD))), "float32")
    v = rotated(xp, y, astype(cos, "float32"), astype(sin, "float32"))
    flat = xp.reshape(v, (tokens, heads * _HEAD))  # 192 is a multiple of a block, so rows of all heads are one row
    rows, columns = quantize_rows_and_columns(flat, MXFP8_E4M3, recipe="power_of_two")
    shape = (tokens, heads, _HEAD)
    return (
        from_codes(xp.reshape(rows.codes, shape), "float8_e4m3fn"),
        xp.reshape(rows.scales, (tokens, heads, _HEAD // _HALF)),
        from_codes(xp.reshape(columns.codes, shape), "float8_e4m3fn"),
        xp.reshape(columns.scales, (columns.scales.shape[0], heads, _HEAD)),
    )


def rotated(xp: Any, y: Any, cos: Any, sin: Any) -> Any:
    """The head's tail, pairs side by side, turned into two halves; products of bfloat16 values are exact."""
    cos, sin = cos[:, None, :], sin[:, None, :]
    p, q = y[:, :, _PLAIN::2], y[:, :, _PLAIN + 1 :: 2]
    first = p * cos[:, :, :_HALF] - q * sin[:, :, :_HALF]
    second = p * sin[:, :, _HALF:] + q * cos[:, :, _HALF:]
    return xp.concat((y[:, :, :_PLAIN], first, second), axis=2)
