"""bfloat16, float16 and TF32 rounding, bit for bit, against exact searches and NumPy's own binary16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cudnn_fe.core.codecs import round_to_tf32, to_bfloat16, to_float16
from cudnn_fe_testkit.floats import all_bfloat16, all_float16, float32_patterns, float32_with_neighbours

FRAMEWORKS = pytest.mark.parametrize("framework", [torch.asarray, jnp.asarray], ids=["torch", "jax"])
NARROWINGS = [(to_bfloat16, ml_dtypes.bfloat16), (to_float16, np.float16)]
narrowings = pytest.mark.parametrize(("narrow", "target"), NARROWINGS, ids=["bfloat16", "float16"])


def finite_values(x: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    return wide[np.isfinite(wide)]


def oracle(x: NDArray[np.float32], target: Any) -> NDArray[np.uint16]:
    """Search of all non-negative values of the 16-bit type, comparing in float64, ties to the even code."""
    codes = np.arange(2**15, dtype=np.uint16)
    grid = finite_values(codes.view(target))
    grid = np.append(grid, 2 * grid[-1] - grid[-2])
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    size = np.abs(wide)
    below = np.clip(np.searchsorted(grid, size, side="right") - 1, 0, len(grid) - 2)
    middle = (grid[below] + grid[below + 1]) / 2
    code = below + ((size > middle) | ((size == middle) & (below % 2 == 1)))
    code = np.where(np.isinf(size), len(grid) - 1, code) | (np.signbit(x).astype(np.int64) << 15)
    return np.where(np.isnan(wide), 0x7FFF, code).astype(np.uint16)


def bits_of(array: Any) -> NDArray[np.uint16]:
    if isinstance(array, torch.Tensor):
        return array.view(torch.int16).numpy().view(np.uint16)
    return np.asarray(array).view(np.uint16)


def inputs(target: Any) -> NDArray[np.float32]:
    """Patterns, and every midpoint between neighbours of the target with its own neighbours."""
    values = finite_values(np.arange(2**15, dtype=np.uint16).view(target))
    return np.concatenate([float32_patterns(), float32_with_neighbours((values[1:] + values[:-1]) / 2)])


@narrowings
def test_narrowing_is_the_oracle(narrow: Callable[[Any], Any], target: Any) -> None:
    x = inputs(target)
    got = narrow(x)
    assert got.dtype == target
    np.testing.assert_array_equal(bits_of(got), oracle(x, target))


@FRAMEWORKS
@narrowings
def test_frameworks_narrow_alike(framework: Callable[[Any], Any], narrow: Callable[[Any], Any], target: Any) -> None:
    x = inputs(target)
    got = narrow(framework(x))
    assert str(got.dtype).removeprefix("torch.") == np.dtype(target).name
    np.testing.assert_array_equal(bits_of(got), bits_of(narrow(x)))


@narrowings
def test_jit_narrows_alike(narrow: Callable[[Any], Any], target: Any) -> None:
    x = inputs(target)
    np.testing.assert_array_equal(bits_of(jax.jit(narrow)(jnp.asarray(x))), bits_of(narrow(x)))


def test_a_16_bit_value_narrows_to_itself() -> None:
    for narrow, x in ((to_bfloat16, all_bfloat16()), (to_float16, all_float16())):
        number = ~np.isnan(x.astype(np.float32))
        np.testing.assert_array_equal(bits_of(narrow(x))[number], x.view(np.uint16)[number])


@pytest.mark.parametrize("framework", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"])
def test_float16_widens_exactly(framework: Callable[[Any], Any]) -> None:
    # Its 10 mantissa bits are TF32's, so rounding shows the widened value itself.
    x = all_float16()
    number = ~np.isnan(x)
    got = np.asarray(round_to_tf32(framework(x)))
    np.testing.assert_array_equal(got[number].view(np.uint32), x.astype(np.float32)[number].view(np.uint32))


def test_16_bit_values_narrow_across_without_a_second_rounding() -> None:
    wide = all_bfloat16().astype(np.float32)
    np.testing.assert_array_equal(bits_of(to_float16(all_bfloat16())), oracle(wide, np.float16))
    np.testing.assert_array_equal(
        bits_of(to_bfloat16(all_float16())), oracle(all_float16().astype(np.float32), ml_dtypes.bfloat16)
    )


def tf32_oracle(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Ties away, by scaling to integers in float64: floor(|x| / unit + 1/2) is exact there."""
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(x.astype(np.float64))
        exponent = np.maximum(np.floor(np.log2(np.where((size > 0) & np.isfinite(size), size, 1))), -126)
        unit = np.exp2(exponent - 10)
        rounded: NDArray[np.float32] = np.copysign(np.floor(size / unit + 0.5) * unit, x).astype(np.float32)
    return rounded


# One length, or JAX compiles for each.
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=16, max_size=16))
@settings(max_examples=200, deadline=None)
def test_tf32_of_any_float32(bits: list[int]) -> None:
    check_tf32(np.asarray(bits, np.uint32).view(np.float32))


def test_tf32_of_all_patterns() -> None:
    check_tf32(float32_patterns())


def check_tf32(x: NDArray[np.float32]) -> None:
    got = round_to_tf32(x)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got[number].view(np.uint32), tf32_oracle(x)[number].view(np.uint32))
    assert (got[~number].view(np.uint32) == 0x7FFFFFFF).all()
    for framework in (torch.asarray, jnp.asarray):
        np.testing.assert_array_equal(np.asarray(round_to_tf32(framework(x))).view(np.uint32), got.view(np.uint32))


def test_tf32_by_hand() -> None:
    largest = np.finfo(np.float32).max
    x = np.asarray([1 + 2**-11, -(1 + 2**-11), 1 + 2**-11 - 2**-23, largest, 2.0**-137, 2.0**-138], np.float32)
    assert round_to_tf32(x).tolist() == [1 + 2**-10, -(1 + 2**-10), 1.0, np.inf, 2.0**-136, 0.0]
