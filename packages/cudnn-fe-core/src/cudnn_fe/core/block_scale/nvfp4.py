"""bfloat16 to NVFP4 and back with packed scales: one call each, in the layouts that FP4 attention and GEMMs read."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.codecs.bits import Array
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["nvfp4_block_scale_dequantize", "nvfp4_block_scale_quantize"]


def nvfp4_block_scale_quantize(
    input_tensor: Array, encode_scale: Array, *, stream: Any = None, backend: str | None = None
) -> TupleDict:
    """Quantises rows of ``input * encode_scale`` to NVFP4, blocks of 16, by the recipe ``"converter"``.

    Args:
        input_tensor: bfloat16 (1, M, K), C-contiguous, M a multiple of 128 and K of 64, K at most 16384.
        encode_scale: float32 (1, 1, 1), positive.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``packed_tensor`` (1, M, K/2): FP4 pairs, ``float4_e2m1fn_x2`` in torch, uint8 elsewhere; ``scale_tensor``
        (1, M, K/16): float8_e4m3fn bytes in the packed 128x4 order, not row by row.

    Raises:
        DTypeError, ShapeError, StrideError, FrameworkError: Operands outside the contract.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> x = np.full((1, 128, 64), 3, ml_dtypes.bfloat16)
        >>> out = nvfp4_block_scale_quantize(x, np.ones((1, 1, 1), np.float32))
        >>> int(out["packed_tensor"][0, 0, 0]), float(out["scale_tensor"][0, 0, 0])
        (119, 0.5)

    The converter of cudnn-frontend 1.32 with exact reciprocals.
    """
    from cudnn_fe.core.block_scale.nvfp4_ops import TO_NVFP4  # keeps `import cudnn_fe.core.block_scale` light

    options = (("native", framework_of(input_tensor, operand="input_tensor") == "torch"),)
    operands = (input_tensor, encode_scale)
    packed, scales = call(TO_NVFP4, operands, options, backend=backend, stream=stream)
    return TupleDict(packed_tensor=packed, scale_tensor=scales)


def nvfp4_block_scale_dequantize(
    packed_tensor: Array, scale_tensor: Array, decode_scale: Array, *, stream: Any = None, backend: str | None = None
) -> Array:
    """The bfloat16 values ``code * (scale * decode_scale)``, each product rounded to float32 and then to bfloat16.

    Args:
        packed_tensor: (1, M, K/2) FP4 pairs: ``float4_e2m1fn_x2`` or uint8, C-contiguous.
        scale_tensor: (1, M, K/16) float8_e4m3fn bytes in the packed 128x4 order.
        decode_scale: float32 (1, 1, 1).
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        bfloat16 (1, M, K).

    Raises:
        DTypeError, ShapeError, StrideError, FrameworkError: Operands outside the contract.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> scales = np.full((1, 128, 4), 0.5, ml_dtypes.float8_e4m3fn)
        >>> packed = np.full((1, 128, 32), 0x77, np.uint8)
        >>> float(nvfp4_block_scale_dequantize(packed, scales, np.full((1, 1, 1), 2, np.float32))[0, 0, 0])
        6.0

    The converter of cudnn-frontend 1.32.
    """
    from cudnn_fe.core.block_scale.nvfp4_ops import FROM_NVFP4  # keeps `import cudnn_fe.core.block_scale` light

    operands = (packed_tensor, scale_tensor, decode_scale)
    return call(FROM_NVFP4, operands, (), backend=backend, stream=stream)[0]
