"""What core itself announces to ``cudnn``: the conversions to and from block-scaled formats."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_BLOCK_SCALE = "cudnn_fe.core.block_scale"
_NVFP4 = ("nvfp4_block_scale_quantize", "nvfp4_block_scale_dequantize")
_CLASSES = ("Nvfp4BlockScaleQuantizer", "Nvfp4BlockScaleDequantizer")

FAMILY = Family(
    name="core",
    package="cudnn-fe-core",
    op_targets=(
        f"{_BLOCK_SCALE}.quantizer.op:QUANTIZE",
        f"{_BLOCK_SCALE}.dequantizer.op:DEQUANTIZE",
        f"{_BLOCK_SCALE}.nvfp4_ops:TO_NVFP4",
        f"{_BLOCK_SCALE}.nvfp4_ops:FROM_NVFP4",
    ),
    exports={
        "block_scale_quantize": f"{_BLOCK_SCALE}:block_scale_quantize",
        "block_scale_dequantize": f"{_BLOCK_SCALE}:block_scale_dequantize",
        **{f"ops.{name}": f"{_BLOCK_SCALE}:{name}" for name in _NVFP4},
        **{f"ops.{name}": f"{_BLOCK_SCALE}.legacy:{name}" for name in _CLASSES},
    },
)
