"""Encoding against an independent oracle: a search of the value table in float64, where every comparison is exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cudnn_fe.core.codecs import E2M1, E4M3, E5M2, E8M0, FORMATS, Format, Rounding, decode_table, encode
from cudnn_fe.core.errors import OptionError
from cudnn_fe_testkit.floats import all_bfloat16, all_float16, float32_patterns, float32_with_neighbours

each_format = pytest.mark.parametrize("row", FORMATS.values(), ids=FORMATS)
each_rounding = pytest.mark.parametrize("mode", ["nearest", "up", "down"])


# What the format would hold with one more code: the far end of the last rounding interval.
PAST_THE_LARGEST = {
    "float8_e4m3fn": 480.0,
    "float8_e5m2": 65536.0,
    "float4_e2m1fn": 8.0,
    "float8_e8m0fnu": 2.0**128,
    "ue5m3": 122880.0,
}


def oracle(x: NDArray[Any], row: Format, mode: Rounding, saturate: bool) -> NDArray[np.uint8]:
    """Codes found by search. Knows the value of every code and nothing of bits."""
    with np.errstate(invalid="ignore"):
        wide = np.asarray(x).astype(np.float64)
    negative = np.signbit(wide) & row.signed
    size = np.abs(wide)
    grid = np.asarray(decode_table(row)[: row.max_code + 1])
    grid = np.append(grid, PAST_THE_LARGEST[row.name])
    below = np.clip(np.searchsorted(grid, size, side="right") - 1, 0, len(grid) - 2)
    lower, upper = grid[below], grid[below + 1]
    middle = (lower + upper) / 2
    inexact = size > lower
    if mode == "nearest":
        raised = (size > middle) | ((size == middle) & (below % 2 == 1))
    else:
        raised = inexact & ((mode == "up") != negative)
    code = below + raised
    beyond = code > row.max_code
    if not saturate:
        beyond |= np.isinf(size)
    code = np.where(beyond, row.max_code if saturate else row.overflow_code, code)
    nan = np.isnan(wide) | (code == row.nan_code if row.nan_codes else False)
    code = np.where(negative, code + 2 ** (row.bits - 1), code)
    return np.where(nan, row.nan_code, code).astype(np.uint8)


def boundaries(row: Format) -> NDArray[np.float32]:
    """Every value, every midpoint, what lies past the end, and all their neighbours in float32."""
    values = sorted(value for value in decode_table(row) if 0 <= value < math.inf)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    past = [(row.max + PAST_THE_LARGEST[row.name]) / 2, PAST_THE_LARGEST[row.name], 1.5 * row.max]
    specials = [0.0, 2.0**-149, 2.0**-127, 2.0**-126, 3.0e38]
    finite = [value for value in (*values, *middles, *past, *specials) if value <= float(np.finfo(np.float32).max)]
    return np.append(float32_with_neighbours(finite), np.asarray([np.inf, -np.inf, np.nan, -np.nan], np.float32))


@each_format
@each_rounding
@pytest.mark.parametrize("saturate", [True, False])
def test_encode_is_the_oracle(row: Format, mode: Rounding, saturate: bool) -> None:
    if not saturate and row.overflow_code is None:
        pytest.skip("the format only saturates")
    for x in (float32_patterns(), all_bfloat16(), all_float16(), boundaries(row)):
        np.testing.assert_array_equal(encode(x, row, saturate=saturate, round=mode), oracle(x, row, mode, saturate))


@pytest.mark.parametrize("framework", [torch.asarray, jnp.asarray], ids=["torch", "jax"])
@each_format
@each_rounding
def test_every_framework_gives_the_same_codes(framework: Callable[[Any], Any], row: Format, mode: Rounding) -> None:
    halves = all_float16()
    brains = all_bfloat16()
    brain_array: Any
    if framework is torch.asarray:
        brain_array = torch.from_numpy(brains.view(np.int16)).view(torch.bfloat16)
    else:
        brain_array = jnp.asarray(brains)
    pairs = [(x, framework(x)) for x in (float32_patterns(), boundaries(row), halves)] + [(brains, brain_array)]
    for saturate in {True, row.overflow_code is None}:
        for x, array in pairs:
            np.testing.assert_array_equal(
                np.asarray(encode(array, row, saturate=saturate, round=mode)),
                encode(x, row, saturate=saturate, round=mode),
            )


@each_format
def test_jit_is_eager(row: Format) -> None:
    jitted = jax.jit(encode, static_argnums=1, static_argnames=("saturate", "round"))
    for x in (float32_patterns(), all_bfloat16(), all_float16(), boundaries(row)):
        np.testing.assert_array_equal(np.asarray(jitted(jnp.asarray(x), row)), encode(x, row))


@each_format
@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64), mode=st.sampled_from(["nearest", "up", "down"])
)
@settings(max_examples=100, deadline=None)
def test_any_float32(row: Format, bits: list[int], mode: Rounding) -> None:
    x = np.asarray(bits, np.uint32).view(np.float32)
    expected = oracle(x, row, mode, True)
    np.testing.assert_array_equal(encode(x, row, round=mode), expected)
    np.testing.assert_array_equal(encode(torch.from_numpy(x), row, round=mode).numpy(), expected)


@pytest.mark.parametrize(
    ("row", "x", "saturated", "unsaturated"),
    [
        (E4M3, 448.0, 0x7E, 0x7E),
        (E4M3, 464.0, 0x7E, 0x7E),
        (E4M3, 465.0, 0x7E, 0x7F),
        (E4M3, -1e30, 0xFE, 0x7F),
        (E4M3, math.inf, 0x7E, 0x7F),
        (E4M3, -math.inf, 0xFE, 0x7F),
        (E4M3, math.nan, 0x7F, 0x7F),
        (E4M3, -(2.0**-11), 0x80, 0x80),
        (E5M2, 61439.0, 0x7B, 0x7B),
        (E5M2, 61440.0, 0x7B, 0x7C),
        (E5M2, -math.inf, 0xFB, 0xFC),
        (E5M2, math.nan, 0x7F, 0x7F),
        (E2M1, 5.0, 0x6, None),
        (E2M1, -1e30, 0xF, None),
        (E2M1, math.nan, 0x7, None),
        (E2M1, 0.25, 0x0, None),
        (E8M0, 0.0, 0x00, 0x00),
        (E8M0, 2.0**-149, 0x00, 0x00),
        (E8M0, 2.0**-127, 0x00, 0x00),
        (E8M0, 1.5 * 2.0**-127, 0x01, 0x01),
        (E8M0, -1.0, 0x7F, 0x7F),
        (E8M0, 1.0000001, 0x80, 0x80),
        (E8M0, 2.0**127, 0xFE, 0xFE),
        (E8M0, 3e38, 0xFE, 0xFF),
        (E8M0, math.inf, 0xFE, 0xFF),
        (E8M0, math.nan, 0xFF, 0xFF),
    ],
)
def test_policies_by_hand(row: Format, x: float, saturated: int, unsaturated: int | None) -> None:
    array = np.asarray([x], np.float32)
    assert encode(array, row).tolist() == [saturated]
    if unsaturated is not None:
        assert encode(array, row, saturate=False).tolist() == [unsaturated]


def test_nan_of_either_sign_and_any_payload_is_the_canonical_one() -> None:
    nans = np.asarray([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    for row in FORMATS.values():
        assert set(encode(nans.view(np.float32), row).tolist()) == {row.nan_code}


def test_a_directed_rounding_toward_zero_does_not_overflow() -> None:
    x = np.asarray([1e9, -1e9, np.inf, -np.inf], np.float32)
    assert encode(x, E5M2, saturate=False, round="down").tolist() == [0x7B, 0xFC, 0x7C, 0xFC]
    assert encode(x, E5M2, saturate=False, round="up").tolist() == [0x7C, 0xFB, 0x7C, 0xFC]


def test_options_are_checked() -> None:
    x = np.zeros(1, np.float32)
    with pytest.raises(OptionError, match="round: got 'stochastic'"):
        encode(x, E4M3, round="stochastic")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="saturate: got False, wanted True for float4_e2m1fn"):
        encode(x, E2M1, saturate=False)
