"""The NVFP4 converter: bytes against exact arithmetic, scales at the documented offsets, the way back, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.block_scale import nvfp4_block_scale_dequantize, nvfp4_block_scale_quantize
from cudnn_fe.core.errors import DTypeError, FrameworkError, NotCompiledError, ShapeError, StrideError
from cudnn_fe_testkit import block_scale as exact

M, K = 128, 128
ENCODE = np.full((1, 1, 1), 3.7, np.float32)
DECODE = np.float32(1) / ENCODE


@pytest.fixture(scope="module")
def source() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, M, K)) * 2.0 ** rng.integers(-12, 9, (1, M, 1))
    x[0, 1, :16], x[0, 2, 3], x[0, 3, 4] = 0, np.inf, np.nan
    return x.astype(ml_dtypes.bfloat16)


def as_torch(x: np.ndarray[Any, Any]) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def raw(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, torch.Tensor):
        return x.view(torch.uint8).numpy()
    return np.asarray(x).view(np.uint8)


@pytest.mark.parametrize("convert", [np.asarray, as_torch, jnp.asarray], ids=["numpy", "torch", "jax"])
def test_bytes(source: np.ndarray[Any, Any], convert: Callable[[Any], Any]) -> None:
    out = nvfp4_block_scale_quantize(convert(source), convert(ENCODE))
    assert list(out.keys()) == ["packed_tensor", "scale_tensor"]
    packed, scales = raw(out["packed_tensor"]), raw(out["scale_tensor"])
    assert packed.shape == (1, M, K // 2)
    assert scales.shape == (1, M, K // 16)
    back = nvfp4_block_scale_dequantize(out["packed_tensor"], out["scale_tensor"], convert(DECODE))
    values = raw(back).view(np.uint16)
    for row in (0, 1, 2, 3, 40, 127):
        for block in range(K // 16):
            x = [float(v) for v in source[0, row, 16 * block : 16 * block + 16]]
            scale, codes = exact.quantize_block(x, "nvfp4", "converter", float(ENCODE[0, 0, 0]))
            offset = block // 4 * 512 + row % 32 * 16 + row // 32 * 4 + block % 4
            assert scales.ravel()[offset] == scale
            pairs = [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]
            assert packed[0, row, 8 * block : 8 * block + 8].tolist() == pairs
            wanted = np.asarray(exact.dequantize_block(scale, codes, "nvfp4", float(DECODE[0, 0, 0])), np.float32)
            got = values[0, row, 16 * block : 16 * block + 16].view(ml_dtypes.bfloat16).astype(np.float32)
            assert np.array_equal(got, wanted.astype(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True)


def test_under_jit(source: np.ndarray[Any, Any]) -> None:
    wanted = nvfp4_block_scale_quantize(source, ENCODE)
    got = jax.jit(nvfp4_block_scale_quantize)(jnp.asarray(source), jnp.asarray(ENCODE))
    assert np.array_equal(raw(got["packed_tensor"]), raw(wanted["packed_tensor"]))
    assert np.array_equal(raw(got["scale_tensor"]), raw(wanted["scale_tensor"]))


def test_under_compile(source: np.ndarray[Any, Any]) -> None:
    def there_and_back(x: Any, encode: Any, decode: Any) -> Any:
        packed, scales = nvfp4_block_scale_quantize(x, encode)
        return nvfp4_block_scale_dequantize(packed, scales, decode)

    given = [as_torch(x) for x in (source, ENCODE, DECODE)]
    got = torch.compile(there_and_back, backend="eager", fullgraph=True)(*given)
    assert np.array_equal(raw(got), raw(there_and_back(source, ENCODE, DECODE)))


def test_classes(source: np.ndarray[Any, Any]) -> None:
    import cudnn.ops

    x, encode, decode = (as_torch(x) for x in (source, ENCODE, DECODE))
    packed = torch.empty(1, M, K // 2, dtype=torch.uint8)  # bytes are accepted as pairs
    scales = torch.empty(1, M, K // 16, dtype=torch.float8_e4m3fn)
    quantizer = cudnn.ops.Nvfp4BlockScaleQuantizer(x, encode, packed, scales)
    with pytest.raises(NotCompiledError):
        quantizer.execute(x, encode, packed, scales)
    quantizer.compile()
    quantizer.execute(x, encode, packed, scales)
    wanted = nvfp4_block_scale_quantize(x, encode)
    assert torch.equal(packed, wanted[0].view(torch.uint8))
    assert torch.equal(scales.view(torch.uint8), wanted[1].view(torch.uint8))
    out = torch.empty(1, M, K, dtype=torch.bfloat16)
    dequantizer = cudnn.ops.Nvfp4BlockScaleDequantizer(packed, scales, decode, out)
    dequantizer(packed, scales, decode, out)
    assert np.array_equal(raw(out), raw(nvfp4_block_scale_dequantize(packed, scales, decode)))
    with pytest.raises(ShapeError, match="scale_tensor"):
        cudnn.ops.Nvfp4BlockScaleQuantizer(x, encode, packed, scales[:, :64]).check_support()


def test_refusals(source: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ShapeError, match="M a multiple of 128"):
        nvfp4_block_scale_quantize(source[:, :100], ENCODE)
    with pytest.raises(ShapeError, match="K a multiple of 64"):
        nvfp4_block_scale_quantize(np.ascontiguousarray(source[:, :, :80]), ENCODE)
    for shape in ((2, 128, 64), (1, 0, 64), (1, 128, 0), (1, 128, 16448)):
        with pytest.raises(ShapeError, match="wanted 1 x M x K"):
            nvfp4_block_scale_quantize(np.zeros(shape, ml_dtypes.bfloat16), ENCODE)
    with pytest.raises(FrameworkError, match=r"input_tensor: got builtins\.int"):
        nvfp4_block_scale_quantize(3, ENCODE)
    with pytest.raises(DTypeError, match="wanted bfloat16"):
        nvfp4_block_scale_quantize(source.astype(np.float32), ENCODE)
    with pytest.raises(StrideError, match="contiguous"):
        nvfp4_block_scale_quantize(source.transpose(0, 2, 1), ENCODE)
    with pytest.raises(ShapeError, match=r"encode_scale: got \(1,\)"):
        nvfp4_block_scale_quantize(source, np.ones(1, np.float32))
    out = nvfp4_block_scale_quantize(source, ENCODE)
    with pytest.raises(DTypeError, match="packed_tensor: got bfloat16, wanted float4_e2m1fn or uint8"):
        nvfp4_block_scale_dequantize(source, out[1], DECODE)
    with pytest.raises(ShapeError, match="scale_tensor: got"):
        nvfp4_block_scale_dequantize(out[0], out[1][:, :64], DECODE)
    with pytest.raises(DTypeError, match="scale_tensor: got uint8"):
        nvfp4_block_scale_dequantize(out[0], raw(out[1]), DECODE)
    with pytest.raises(DTypeError, match="decode_scale: got float64"):
        nvfp4_block_scale_dequantize(out[0], out[1], np.ones((1, 1, 1)))
