"""The definitions of the NVFP4 converters, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.block_scale.dequantize import dequantize
from cudnn_fe.core.block_scale.formats import NVFP4
from cudnn_fe.core.block_scale.layouts import scale_shape, swizzle_scales, unswizzle_scales
from cudnn_fe.core.block_scale.quantize import quantize
from cudnn_fe.core.codecs import from_codes, pack_fp4, to_codes, unpack_fp4

if TYPE_CHECKING:
    from cudnn_fe.core.block_scale.nvfp4_ops import FromNvfp4, ToNvfp4

__all__ = ["from_nvfp4", "to_nvfp4"]


def to_nvfp4(problem: ToNvfp4, xp: Any, x: Any, encode_scale: Any) -> tuple[Any, Any]:
    """FP4 pairs, and scales in the packed order."""
    _, rows, columns = problem.x.shape
    got = quantize(x, NVFP4, recipe="converter", norm=encode_scale)
    packed, scales = pack_fp4(got.codes), xp.reshape(swizzle_scales(got.scales), (1, rows, columns // 16))
    return packed.view(xp.float4_e2m1fn_x2) if problem.native else packed, from_codes(scales, "float8_e4m3fn")


def from_nvfp4(problem: FromNvfp4, xp: Any, packed: Any, scales: Any, decode_scale: Any) -> tuple[Any]:
    """The numbers."""
    _, rows, half = problem.packed_tensor.shape
    plain = unswizzle_scales(xp.reshape(to_codes(scales), scale_shape(rows, half // 8)), rows, half // 8)
    codes = unpack_fp4(packed.view(xp.uint8))
    return (dequantize(codes, plain, NVFP4, factor=decode_scale, dtype="bfloat16"),)
