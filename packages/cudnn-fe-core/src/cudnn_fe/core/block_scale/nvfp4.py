"""bfloat16 to NVFP4 and back with packed scales: one call each, in the layouts that FP4 attention and GEMMs read."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cudnn_fe.core.block_scale.dequantize import dequantize
from cudnn_fe.core.block_scale.formats import NVFP4
from cudnn_fe.core.block_scale.layouts import scale_shape, swizzle_scales, unswizzle_scales
from cudnn_fe.core.block_scale.quantize import quantize
from cudnn_fe.core.codecs import from_codes, pack_fp4, to_codes, unpack_fp4
from cudnn_fe.core.codecs.bits import Array, namespace_of
from cudnn_fe.core.errors import DTypeError, ShapeError, StrideError
from cudnn_fe.core.experimental import warn_reference_on_gpu
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["nvfp4_block_scale_dequantize", "nvfp4_block_scale_quantize"]

_MOST_SCALES = 1024  # per row


def nvfp4_block_scale_quantize(input_tensor: Array, encode_scale: Array) -> TupleDict:
    """Quantises rows of ``input * encode_scale`` to NVFP4, blocks of 16, by the recipe ``"converter"``.

    Args:
        input_tensor: bfloat16 (1, M, K), C-contiguous, M a multiple of 128 and K of 64, K at most 16384.
        encode_scale: float32 (1, 1, 1), positive.

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
    spec = _require(input_tensor, "input_tensor", ("bfloat16",))
    rows, columns = _extents(spec, 1)
    if spec.is_cuda:
        warn_reference_on_gpu("nvfp4_block_scale_quantize")
    _require_scalar(encode_scale, "encode_scale")
    xp = namespace_of(input_tensor)
    got = quantize(input_tensor, NVFP4, recipe="converter", norm=encode_scale)
    packed, scales = pack_fp4(got.codes), xp.reshape(swizzle_scales(got.scales), (1, rows, columns // 16))
    framework = framework_of(input_tensor)
    if framework == "torch":
        packed = packed.view(xp.float4_e2m1fn_x2)
    elif framework == "jax":
        import_module("cudnn_fe.core.jax")  # makes the result a pytree
    return TupleDict(packed_tensor=packed, scale_tensor=from_codes(scales, "float8_e4m3fn"))


def nvfp4_block_scale_dequantize(packed_tensor: Array, scale_tensor: Array, decode_scale: Array) -> Array:
    """The bfloat16 values ``code * (scale * decode_scale)``, each product rounded to float32 and then to bfloat16.

    Args:
        packed_tensor: (1, M, K/2) FP4 pairs: ``float4_e2m1fn_x2`` or uint8, C-contiguous.
        scale_tensor: (1, M, K/16) float8_e4m3fn bytes in the packed 128x4 order.
        decode_scale: float32 (1, 1, 1).

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
    xp = namespace_of(packed_tensor, operand="packed_tensor")
    spec = _require(packed_tensor, "packed_tensor", ("uint8", "float4_e2m1fn"))
    rows, columns = _extents(spec, 2)
    if spec.is_cuda:
        warn_reference_on_gpu("nvfp4_block_scale_dequantize")
    scales = _require(scale_tensor, "scale_tensor", ("float8_e4m3fn",))
    if scales.shape != (1, rows, columns // 16):
        raise ShapeError(
            "scale_tensor", got=str(scales.shape), wanted=str((1, rows, columns // 16)), remedy="pass matching operands"
        )
    _require_scalar(decode_scale, "decode_scale")
    bits = xp.reshape(to_codes(scale_tensor), scale_shape(rows, columns // 16))
    plain = unswizzle_scales(bits, rows, columns // 16)
    codes = unpack_fp4(packed_tensor.view(xp.uint8))
    return dequantize(codes, plain, NVFP4, factor=decode_scale, dtype="bfloat16")


def _require(x: Array, name: str, dtypes: tuple[str, ...]) -> TensorSpec:
    spec = spec_of(x, name)
    spec.require_rank(3, "(1, M, columns)")
    if spec.dtype.name not in dtypes:
        raise DTypeError(name, got=str(spec.dtype), wanted=" or ".join(dtypes), remedy="cast the operand")
    if spec.strides != contiguous_strides(spec.shape):
        raise StrideError(
            name, got=f"strides {spec.strides}", wanted="a C-contiguous array", remedy="copy it with contiguous()"
        )
    return spec


def _extents(spec: TensorSpec, per_byte: int) -> tuple[int, int]:
    batch, rows, columns = spec.shape[0], spec.shape[1], spec.shape[2] * per_byte
    if batch != 1 or rows < 1 or rows % 128 or columns < 1 or columns % 64 or columns > 16 * _MOST_SCALES:
        raise ShapeError(
            spec.name,
            got=f"{batch} x {rows} x {columns} elements",
            wanted=f"1 x M x K, M a multiple of 128, K a multiple of 64 up to {16 * _MOST_SCALES}",
            remedy="pad with zeros, or use quantize and dequantize, which take any extents",
        )
    return rows, columns


def _require_scalar(x: Array, name: str) -> None:
    spec: Any = spec_of(x, name)
    if spec.shape != (1, 1, 1):
        raise ShapeError(name, got=str(spec.shape), wanted="(1, 1, 1)", remedy="reshape it")
    if spec.dtype.name != "float32":
        raise DTypeError(name, got=str(spec.dtype), wanted="float32", remedy="cast it")
