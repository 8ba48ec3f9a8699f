"""Block-scaled formats: MXFP8, MXFP4 and NVFP4, bit-exact under NumPy, torch and JAX, eager or traced.

`formats` says which element goes with which scale, `quantize` and `dequantize` convert, `layouts` and `expert_columns`
arrange scales in memory, and `arithmetic` multiplies float32 numbers by their bits. `quantizer`, `dequantizer` and
`nvfp4` are the same conversions as ops, with kernels.
"""

from cudnn_fe.core.block_scale.dequantize import dequantize
from cudnn_fe.core.block_scale.dequantizer import block_scale_dequantize
from cudnn_fe.core.block_scale.expert_columns import join_expert_columns, split_expert_columns
from cudnn_fe.core.block_scale.formats import (
    BLOCK_FORMATS,
    MXFP4,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
    block_format,
)
from cudnn_fe.core.block_scale.layouts import atom_view, physical_view, scale_shape, swizzle_scales, unswizzle_scales
from cudnn_fe.core.block_scale.nvfp4 import nvfp4_block_scale_dequantize, nvfp4_block_scale_quantize
from cudnn_fe.core.block_scale.quantize import BlockScaled, Recipe, quantize, quantize_rows_and_columns, scale_blocks
from cudnn_fe.core.block_scale.quantizer import block_scale_quantize

__all__ = [
    "BLOCK_FORMATS",
    "MXFP4",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "NVFP4",
    "BlockFormat",
    "BlockScaled",
    "Recipe",
    "atom_view",
    "block_format",
    "block_scale_dequantize",
    "block_scale_quantize",
    "dequantize",
    "join_expert_columns",
    "nvfp4_block_scale_dequantize",
    "nvfp4_block_scale_quantize",
    "physical_view",
    "quantize",
    "quantize_rows_and_columns",
    "scale_blocks",
    "scale_shape",
    "split_expert_columns",
    "swizzle_scales",
    "unswizzle_scales",
]
