"""Quantised bytes against exact rational arithmetic, in every framework, and what every special value becomes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any

import array_api_compat
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.block_scale import (
    BLOCK_FORMATS,
    MXFP4,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
    block_format,
    dequantize,
    quantize,
    quantize_rows_and_columns,
)
from cudnn_fe.core.block_scale.arithmetic import multiply_bits, reciprocal_bits
from cudnn_fe.core.codecs import E2M1, E4M3, E8M0, UE5M3, decode_table
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe_testkit import block_scale as exact

Framework = Callable[[Any], Any]
FRAMEWORKS = pytest.mark.parametrize(
    "framework", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"]
)
FORMATS = pytest.mark.parametrize("format", BLOCK_FORMATS.values(), ids=BLOCK_FORMATS)


def floats(digits: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytes.fromhex(digits), ">u4").astype(np.uint32).view(np.float32)


@pytest.fixture(scope="module")
def conformance() -> dict[str, Any]:
    return json.loads(exact.CONFORMANCE.read_text())


def test_the_conformance_file_is_what_exact_arithmetic_gives(conformance: dict[str, Any]) -> None:
    assert exact.conformance() == conformance


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax.jit"])
def test_conformance(conformance: dict[str, Any], kind: str) -> None:
    wrappers: dict[str, Framework] = {"numpy": np.asarray, "torch": torch.asarray}
    framework = wrappers.get(kind, jnp.asarray)
    programs: dict[Any, tuple[Any, Any]] = {}
    for key, group in groupby(conformance["cases"], lambda case: (case["format"], case["recipe"], case["norm"])):
        rows = list(group)
        name, recipe, digits = key
        format, norm = BLOCK_FORMATS[name], exact.float_of(digits)
        labels = conformance["inputs"][str(format.block)]
        forward: Any = partial(quantize, format=format, recipe=recipe)
        backward: Any = partial(dequantize, format=format)
        if kind == "jax.jit":
            forward, backward = programs.setdefault((name, recipe), (jax.jit(forward), jax.jit(backward)))
        factors = (None, 1.0) if recipe == "power_of_two" else (norm, exact.reciprocal(norm))
        wrapped = [f if f is None else framework(np.asarray([f], np.float32)) for f in factors]
        got = forward(framework(np.stack([floats(labels[row["input"]]) for row in rows])), norm=wrapped[0])
        values = np.asarray(backward(got.codes, got.scales, factor=wrapped[1])).view(np.uint32)
        for i, row in enumerate(rows):
            assert int(got.scales[i, 0]) == row["scale"], (key, row["input"])
            assert np.asarray(got.codes[i]).tobytes().hex() == row["codes"], (key, row["input"])
            assert np.array_equal(values[i], floats(row["values"]).view(np.uint32)), (key, row["input"])


@FRAMEWORKS
def test_products_are_ieee_products(framework: Framework) -> None:
    rng = np.random.default_rng(0)
    special = np.asarray(
        [0, 1, 0x400000, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x3F800001], np.uint32
    )
    bits = np.concatenate([special, special | 0x80000000, rng.integers(0, 2**32, 200_000, dtype=np.uint32)])
    other = np.concatenate([np.repeat(special, 2), rng.permutation(bits[18:])])
    halved = rng.integers(0, 2**23, (2, 50_000), dtype=np.uint32)  # products around the smallest normal number
    near = (np.uint32(63) << 23 | halved[0], np.uint32(64) << 23 | halved[1])
    for a, b in ((bits, other), near):
        with np.errstate(all="ignore"):
            # A product of two 24-bit significands is exact in float64.
            wanted = (a.view(np.float32).astype(np.float64) * b.view(np.float32)).astype(np.float32)
        x, y = framework(a.view(np.int32)), framework(b.view(np.int32))
        got = np.asarray(multiply_bits(array_api_compat.array_namespace(x), x, y)).view(np.float32)
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
        finite = ~np.isnan(wanted)
        assert np.array_equal(got.view(np.uint32)[finite], wanted.view(np.uint32)[finite])


@FRAMEWORKS
@pytest.mark.parametrize("row", [E8M0, E4M3, UE5M3], ids=lambda row: row.name)
def test_reciprocals_of_every_scale(framework: Framework, row: Any) -> None:
    codes = framework(np.arange(256, dtype=np.uint8))
    got = np.asarray(reciprocal_bits(array_api_compat.array_namespace(codes), codes, row)).view(np.float32)
    for code, value in enumerate(decode_table(row)):
        wanted = math.nan if math.isnan(value) else math.inf if value == 0 else exact.fl(1 / Fraction(value))
        assert math.isnan(got[code]) if math.isnan(wanted) else got[code] == wanted, code


@FORMATS
def test_frameworks_agree_on_every_byte(format: BlockFormat) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((2, 40, 70)) * 2.0 ** rng.integers(-140, 126, (2, 40, 70))).astype(np.float32)
    x[0, :, 3], x[1, 2, 5] = 0, np.inf
    for axis, jitted in ((-1, False), (-2, True)):
        wanted = quantize(x, format, axis=axis, norm=0.37)
        forward: Any = partial(quantize, format=format, axis=axis)
        backward: Any = partial(dequantize, format=format, axis=axis, dtype="bfloat16")
        back = backward(wanted.codes, wanted.scales, factor=2.7)
        got = forward(torch.asarray(x), norm=torch.tensor([0.37]))
        assert all(np.array_equal(np.asarray(g), w) for g, w in zip(got, wanted, strict=True))
        again = backward(got.codes, got.scales, factor=2.7).view(torch.int16)
        assert np.array_equal(np.asarray(again), back.view(np.int16))
        if jitted:
            forward, backward = jax.jit(forward), jax.jit(backward)
        got = forward(jnp.asarray(x), norm=jnp.float32([0.37]))
        assert all(np.array_equal(np.asarray(g), w) for g, w in zip(got, wanted, strict=True))
        again = backward(got.codes, got.scales, factor=jnp.float32([2.7]))
        assert np.array_equal(np.asarray(again).view(np.int16), back.view(np.int16))


@FORMATS
def test_error_is_within_the_format(format: BlockFormat) -> None:
    x = np.random.default_rng(2).standard_normal((64, 256)).astype(np.float32)
    got = quantize(x, format, recipe="epilogue")
    largest = np.abs(x).reshape(64, -1, format.block).max(-1).repeat(format.block, -1)
    # Half a unit of the last place below the largest value, or half the smallest step; the scale itself rounds up by
    # less than a factor 2 (E8M0, and E5M2 uses 1/448 of its range more) or by 1/16 (E4M3).
    steps = {E4M3: 2.0**-4, MXFP8_E5M2.element: 2.0**-3, E2M1: 1 / 6 if format is NVFP4 else 1 / 3}
    error = np.abs(dequantize(got.codes, got.scales, format) - x)
    assert (error <= largest * steps[format.element] * 1.0625).all()
    assert error.max() > 0
    assert float(got.amax) == np.abs(x).max()


def test_rows_and_columns_quantise_the_same_values() -> None:
    x = np.random.default_rng(3).standard_normal((64, 96)).astype(np.float32)
    rows, columns = quantize_rows_and_columns(x, MXFP8_E4M3)
    turned = quantize(np.ascontiguousarray(x.T), MXFP8_E4M3)
    assert np.array_equal(columns.codes, turned.codes.T)
    assert np.array_equal(columns.scales, turned.scales.T)
    assert np.array_equal(rows.codes, quantize(x, MXFP8_E4M3).codes)


def test_a_short_last_block_is_a_block_with_zeros_after_it() -> None:
    x = np.random.default_rng(4).standard_normal((2, 40)).astype(np.float32)
    short, whole = quantize(x, MXFP4), quantize(np.pad(x, ((0, 0), (0, 24))), MXFP4)
    assert np.array_equal(short.codes, whole.codes[:, :40])
    assert np.array_equal(short.scales, whole.scales)
    assert dequantize(short.codes, short.scales, MXFP4).shape == (2, 40)


@FRAMEWORKS
@pytest.mark.parametrize("shape", [(0, 32), (2, 0), (0, 0)])
def test_empty(framework: Framework, shape: tuple[int, int]) -> None:
    got = quantize(framework(np.zeros(shape, np.float32)), MXFP8_E4M3)
    assert tuple(got.codes.shape) == shape
    assert tuple(got.scales.shape) == (shape[0], shape[1] // 32)
    assert float(got.amax) == 0
    assert tuple(dequantize(got.codes, got.scales, MXFP8_E4M3).shape) == shape


def test_the_ends_of_e8m0() -> None:
    tiny = np.zeros((1, 32), np.float32)
    tiny[0, :2] = 2.0**-127, -(2.0**-119)
    got = quantize(tiny, MXFP8_E4M3)
    assert got.scales.tolist() == [[0]]
    assert dequantize(got.codes, got.scales, MXFP8_E4M3)[0, :2].tolist() == [2.0**-127, -(2.0**-119)]
    huge = np.full((1, 32), 2.0**127, np.float32)
    got = quantize(huge, MXFP8_E4M3, norm=2.0**9)  # (2^127 / 448) * 2^9 is beyond 2^127
    assert got.scales.tolist() == [[254]]
    assert got.codes[0, 0] == 0x7E  # 2^127 * 2^9 * 2^-127 = 512 saturates
    codes = np.asarray([[0x38, 0x40]], np.uint8)  # 1 and 2
    values = dequantize(codes, np.asarray([[254]], np.uint8), MXFP8_E4M3)
    assert values.tolist() == [[2.0**127, math.inf]]
    assert np.isnan(dequantize(codes, np.asarray([[255]], np.uint8), MXFP8_E4M3)).all()


def test_amax_keeps_nan_and_ignores_signs() -> None:
    x = np.zeros((2, 32), np.float32)
    x[0, 5] = -7
    assert float(quantize(x, MXFP8_E4M3).amax) == 7
    x[1, 1] = -np.nan
    got = quantize(x, MXFP8_E4M3)
    assert np.isnan(got.amax)
    assert got.scales.tolist() == [[exact.encode(7 / 448, "e8m0")], [255]]
    assert set(got.codes[1].tolist()) == {0x7F}


def test_sixteen_bit_sources_widen_exactly() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    wide, narrow = quantize(x.float(), NVFP4), quantize(x, NVFP4)
    assert all(torch.equal(a, b) for a, b in zip(wide, narrow, strict=True))


def test_formats_by_type() -> None:
    assert block_format("float8_e5m2", "float8_e8m0fnu", 32) is MXFP8_E5M2
    assert block_format("uint8", "int8", 32) is MXFP4
    assert block_format(torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, 16).block == 16
    for element, scale, block in (("float8_e4m3fn", "float8_e8m0fnu", 16), ("float4_e2m1fn", "float8_e4m3fn", 32)):
        with pytest.raises(DTypeError, match="wanted FP8 with float8_e8m0fnu per 32"):
            block_format(element, scale, block)
    with pytest.raises(OptionError, match="16 or 32"):
        block_format("float8_e4m3fn", "float8_e8m0fnu", 64)


def test_errors() -> None:
    x = np.zeros((2, 32), np.float32)
    with pytest.raises(OptionError, match="recipe"):
        quantize(x, MXFP8_E4M3, recipe="floor")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no norm with it"):
        quantize(x, MXFP8_E4M3, recipe="power_of_two", norm=2.0)
    with pytest.raises(OptionError, match="E8M0 scale"):
        quantize(x, NVFP4, recipe="power_of_two")
    with pytest.raises(ShapeError, match="wanted an axis 2"):
        quantize(x, NVFP4, axis=2)
    with pytest.raises(ShapeError, match="one element"):
        quantize(x, NVFP4, norm=np.ones(2, np.float32))
    with pytest.raises(DTypeError, match="cast to float32"):
        quantize(x.astype(np.float64), NVFP4)
    with pytest.raises(ShapeError, match="one per 32 along axis 1"):
        dequantize(x.astype(np.uint8), np.zeros((2, 2), np.uint8), MXFP8_E4M3)
    with pytest.raises(OptionError, match="bfloat16"):
        dequantize(x.astype(np.uint8), np.zeros((2, 1), np.uint8), MXFP8_E4M3, dtype="float64")
