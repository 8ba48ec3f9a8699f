"""Quantisation as an op: its results are the definition's, in every framework, direction and layout of scales."""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.block_scale import (
    BLOCK_FORMATS,
    atom_view,
    block_format,
    block_scale_dequantize,
    block_scale_quantize,
    dequantize,
    quantize,
    swizzle_scales,
)
from cudnn_fe.core.codecs import pack_fp4
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError, StrideError

L, R, C = 2, 40, 70


def source(dtype: Any = np.float32) -> Any:
    x = np.random.default_rng(0).standard_normal((L, R, C))
    x[0, 3], x[1, 5, 7], x[1, 6, 8] = 0, np.inf, np.nan
    return x.astype(dtype)


def raw(x: Any) -> Any:
    return (
        x.contiguous().view(torch.uint8).numpy()
        if isinstance(x, torch.Tensor)
        else np.ascontiguousarray(x).view(np.uint8)
    )


WRAP: dict[str, Any] = {"numpy": np.asarray, "torch": torch.from_numpy, "jax": jnp.asarray}


@pytest.mark.parametrize("framework", WRAP)
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("packed", [True, False])
def test_both_directions(framework: str, name: str, packed: bool) -> None:
    x, format = source(), BLOCK_FORMATS[name]
    norm = np.asarray([0.3], np.float32)
    out = block_scale_quantize(
        WRAP[framework](x), name, direction="both", column_recipe="epilogue_columns",
        norm=WRAP[framework](norm), packed=packed, amax=True,
    )  # fmt: skip
    assert list(out.keys()) == ["row_codes", "row_scales", "column_codes", "column_scales", "amax"]
    for axis, recipe, prefix in ((-1, "epilogue", "row"), (-2, "epilogue_columns", "column")):
        codes, scales, _ = quantize(x, format, axis=axis, recipe=recipe, norm=norm)
        codes = pack_fp4(codes, axis=axis) if format.element.bits == 4 else codes
        if packed:
            scales = np.asarray(swizzle_scales(scales if axis == -1 else scales.transpose(0, 2, 1)))
        assert np.array_equal(raw(out[f"{prefix}_codes"]), codes)
        assert np.array_equal(raw(out[f"{prefix}_scales"]), scales)
        back = block_scale_dequantize(
            out[f"{prefix}_codes"], out[f"{prefix}_scales"], name, direction=f"{prefix}s", packed=packed,
            factor=WRAP[framework](1 / norm), dtype="bfloat16",
        )  # fmt: skip
        plain = quantize(x, format, axis=axis, recipe=recipe, norm=norm)
        wanted = dequantize(plain.codes, plain.scales, format, axis=axis, factor=1 / norm, dtype="bfloat16")
        assert np.array_equal(raw(back), raw(wanted))
    assert np.isnan(float(out["amax"]))


def test_two_dims_and_one_direction() -> None:
    x = source()[0]
    out = block_scale_quantize(torch.from_numpy(x), "nvfp4", direction="columns", packed=False)
    assert [out[name] is None for name in out.keys()] == [True, True, False, False, True]  # noqa: SIM118
    assert tuple(out["column_codes"].shape) == (R // 2, C)
    assert tuple(out["column_scales"].shape) == (-(-R // 16), C)
    back = block_scale_dequantize(out["column_codes"], out["column_scales"], "nvfp4", direction="columns", packed=False)
    assert tuple(back.shape) == (R, C)


def test_other_formats_and_forms() -> None:
    x, format = source(ml_dtypes.bfloat16), block_format("uint8", "int8", 16)
    out = block_scale_quantize(x, format)
    physical = block_scale_dequantize(out["row_codes"], out["row_scales"], format)
    atoms = block_scale_dequantize(out["row_codes"], atom_view(out["row_scales"]), format)
    assert np.array_equal(physical, atoms, equal_nan=True)
    unpacked = np.stack((out["row_codes"] & 15, out["row_codes"] >> 4), -1).reshape(x.shape)
    own = unpacked.view(ml_dtypes.float4_e2m1fn)  # NumPy's own dtype has an element a byte
    assert np.array_equal(block_scale_dequantize(own, out["row_scales"], format), physical, equal_nan=True)


def test_under_jit_and_compile() -> None:
    x = source()

    def there_and_back(x: Any) -> Any:
        out = block_scale_quantize(x, "mxfp4", direction="both", recipe="power_of_two", amax=True)
        return *out, block_scale_dequantize(out["row_codes"], out["row_scales"], "mxfp4", dtype="float16")

    wanted = there_and_back(x)
    jitted = jax.jit(there_and_back)(jnp.asarray(x))
    compiled = torch.compile(there_and_back, backend="eager", fullgraph=True)(torch.from_numpy(x))
    for a, b, c in zip(wanted, jitted, compiled, strict=True):
        assert np.array_equal(raw(np.atleast_1d(a)), raw(jnp.atleast_1d(b)))
        assert np.array_equal(raw(np.atleast_1d(a)), raw(torch.atleast_1d(c)))


@pytest.mark.parametrize("shape", [(0, 32), (32, 0), (0, 0)])
def test_empty(shape: tuple[int, int]) -> None:
    out = block_scale_quantize(torch.zeros(shape), "mxfp8_e4m3", direction="both", packed=False, amax=True)
    assert tuple(out["row_codes"].shape) == shape
    assert float(out["amax"]) == 0
    back = block_scale_dequantize(out["row_codes"], out["row_scales"], "mxfp8_e4m3", packed=False)
    assert tuple(back.shape) == shape


def test_refusals() -> None:
    x = source()
    with pytest.raises(OptionError, match="format: got 'mxfp6'"):
        block_scale_quantize(x, "mxfp6")
    with pytest.raises(OptionError, match="direction: got 'diagonal'"):
        block_scale_quantize(x, direction="diagonal")
    with pytest.raises(OptionError, match="column_recipe: got 'floor'"):
        block_scale_quantize(x, direction="both", column_recipe="floor")
    with pytest.raises(OptionError, match="no norm with it"):
        block_scale_quantize(x, recipe="power_of_two", norm=np.ones(1, np.float32))
    with pytest.raises(ShapeError, match="got 69 columns, wanted an even number"):
        block_scale_quantize(x[:, :, :69], "mxfp4")
    with pytest.raises(ShapeError, match=r"x: got 1 dims, wanted \(R, C\)"):
        block_scale_quantize(x[0, 0])
    with pytest.raises(ShapeError, match="norm: got"):
        block_scale_quantize(x, norm=np.ones(2, np.float32))
    with pytest.raises(DTypeError, match="x: got float64"):
        block_scale_quantize(x.astype(np.float64))
    with pytest.raises(StrideError, match="last dim"):
        block_scale_quantize(x.transpose(0, 2, 1))
    out = block_scale_quantize(x)
    with pytest.raises(ShapeError, match="swizzle_scales"):
        block_scale_dequantize(np.repeat(out["row_codes"], 4, 1), out["row_scales"])
    with pytest.raises(DTypeError, match="codes: got uint8, wanted float8_e4m3fn"):
        block_scale_dequantize(raw(out["row_codes"]), out["row_scales"])
    with pytest.raises(DTypeError, match="dtype: got float64"):
        block_scale_dequantize(out["row_codes"], out["row_scales"], dtype="float64")
