"""The records agree with their own value tables, the tables with ml_dtypes, and decoding with the tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.codecs import E2M1, E4M3, E5M2, E8M0, FORMATS, UE5M3, Format, decode, decode_table, encode, format_of
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError

each_format = pytest.mark.parametrize("row", FORMATS.values(), ids=FORMATS)


@each_format
def test_facts_follow_from_the_values(row: Format) -> None:
    table = decode_table(row)
    positive = sorted(value for value in table if 0 < value < math.inf)
    assert row.bits == row.signed + row.exponent_bits + row.mantissa_bits
    assert len(table) == 2**row.bits
    assert (positive[-1], positive[0]) == (row.max, row.min_subnormal)
    assert table.index(row.max) == row.max_code
    assert tuple(code for code, value in enumerate(table) if math.isnan(value)) == row.nan_codes
    assert (math.inf in table) == row.has_inf
    first_normal = positive[2**row.mantissa_bits - 1] if row.mantissa_bits else positive[0]
    assert first_normal == row.min_normal
    if row.signed:
        half = len(table) // 2
        for low, high in zip(table[:half], table[half:], strict=True):
            assert math.isnan(low) == math.isnan(high)
            assert math.isnan(low) or (low == -high and math.copysign(1, high) == -1)


@pytest.mark.parametrize("row", [E4M3, E5M2, E2M1, E8M0], ids=lambda row: row.name)
def test_values_are_those_of_ml_dtypes(row: Format) -> None:
    codes = np.arange(2**row.bits, dtype=np.uint8)
    theirs = codes.view(getattr(ml_dtypes, row.name)).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(decode_table(row)), theirs)


def test_e2m1_and_ue5m3_by_hand() -> None:
    assert decode_table(E2M1) == (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
    assert [UE5M3.value(code) for code in (0, 1, 8, 9, 0x78, 0xFE)] == [0, 2**-17, 2**-14, 1.125 * 2**-14, 1, 114688]


@each_format
@pytest.mark.parametrize("framework", [np.asarray, torch.tensor, jnp.asarray], ids=["numpy", "torch", "jax"])
def test_every_code_decodes_to_the_table_and_encodes_to_itself(row: Format, framework: Callable[[Any], Any]) -> None:
    codes = np.arange(2**row.bits, dtype=np.uint8)
    decoded = decode(framework(codes), row)
    assert type(decoded) is type(framework(codes))
    values = np.asarray(decoded)
    table = np.asarray(decode_table(row))
    with np.errstate(invalid="ignore"):
        expected = table.astype(np.float32)
    number = ~np.isnan(table)
    assert (expected[number] == table[number]).all(), "a value of the format is no float32"
    np.testing.assert_array_equal(values.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert (values.view(np.uint32)[~number] == 0x7FC00000).all()
    expected_codes = np.where(number, codes, row.nan_code)
    np.testing.assert_array_equal(np.asarray(encode(decoded, row, saturate=row is E2M1)), expected_codes)


@each_format
def test_decoding_under_jit_is_decoding(row: Format) -> None:
    codes = jnp.arange(2**row.bits, dtype=jnp.uint8)
    jitted = jax.jit(decode, static_argnums=1)(codes, row)
    np.testing.assert_array_equal(np.asarray(jitted).view(np.uint32), np.asarray(decode(codes, row)).view(np.uint32))


def test_the_high_half_of_an_fp4_byte_is_ignored() -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(decode(codes, E2M1), decode(codes & 0xF, E2M1))


def test_records_are_frozen_and_hashable() -> None:
    assert len(set(FORMATS.values())) == len(FORMATS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        E4M3.bits = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ("float8_e4m3fn", E4M3),
        (torch.float8_e5m2, E5M2),
        (ml_dtypes.float4_e2m1fn, E2M1),
        (np.dtype(ml_dtypes.float8_e8m0fnu), E8M0),
        (jnp.float8_e4m3fn, E4M3),
        (torch.float4_e2m1fn_x2, E2M1),
        (dtype("float8_e5m2"), E5M2),
        ("ue5m3", UE5M3),
        (E8M0, E8M0),
    ],
)
def test_formats_are_found_by_any_spelling(given: Any, row: Format) -> None:
    assert format_of(given) is row


@pytest.mark.parametrize("given", ["bfloat16", torch.float32, "float8_e3m4", dataclasses.replace(E4M3, name="mine")])
def test_other_dtypes_are_no_formats(given: Any) -> None:
    with pytest.raises(DTypeError, match="format"):
        format_of(given)
