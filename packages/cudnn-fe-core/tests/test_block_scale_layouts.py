"""Packed scales: each byte at the offset of the documented formula, and every way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.block_scale import (
    atom_view,
    join_expert_columns,
    physical_view,
    scale_shape,
    split_expert_columns,
    swizzle_scales,
    unswizzle_scales,
)
from cudnn_fe.core.errors import ShapeError

Framework = Callable[[Any], Any]
FRAMEWORKS = pytest.mark.parametrize(
    "framework", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"]
)


@FRAMEWORKS
@pytest.mark.parametrize(("rows", "columns", "batch"), [(128, 4, 1), (130, 5, 2), (1, 1, 1), (256, 8, 3), (0, 3, 1)])
def test_offsets(framework: Framework, rows: int, columns: int, batch: int) -> None:
    plain = np.random.default_rng(0).integers(1, 256, (batch, rows, columns), dtype=np.uint8)
    row_atoms, column_atoms = -(-rows // 128), -(-columns // 4)
    wanted = np.zeros(512 * row_atoms * column_atoms * batch, np.uint8)
    for b, r, c in np.ndindex(batch, rows, columns):
        offset = ((b * row_atoms + r // 128) * column_atoms + c // 4) * 512 + r % 32 * 16 + r // 32 % 4 * 4 + c % 4
        wanted[offset] = plain[b, r, c]
    packed = swizzle_scales(framework(plain))
    assert tuple(packed.shape) == scale_shape(rows, columns, batch)
    assert np.array_equal(np.asarray(packed).ravel(), wanted)
    for form in (packed, atom_view(packed)):
        assert np.array_equal(np.asarray(unswizzle_scales(form, rows, columns)), plain)
    if rows:
        assert np.array_equal(np.asarray(unswizzle_scales(packed.reshape(-1), rows, columns)), plain)


def test_the_atom_view_shares_memory_and_strides_as_documented() -> None:
    packed = swizzle_scales(torch.zeros(3, 300, 9, dtype=torch.uint8))
    assert packed.is_contiguous()
    view = atom_view(packed)
    assert tuple(view.shape) == (32, 4, 3, 4, 3, 3)
    assert view.stride() == (16, 4, 512 * 3, 1, 512, 512 * 3 * 3)
    assert view.data_ptr() == packed.data_ptr()
    assert physical_view(view).stride() == packed.stride()
    assert atom_view(view) is view
    assert physical_view(packed) is packed


@FRAMEWORKS
def test_padding_is_dropped_whatever_it_holds(framework: Framework) -> None:
    plain = np.full((5, 3), 7, np.uint8)
    packed = np.where(np.asarray(swizzle_scales(plain)) == 7, 7, 0xFF).astype(np.uint8)
    assert np.array_equal(np.asarray(unswizzle_scales(framework(packed), 5, 3))[0], plain)


@FRAMEWORKS
@pytest.mark.parametrize("ends", [[256, 768, 768], [0, 256, 768], [0, 256, 256, 768], [768], [128, 384], [0]])
def test_expert_columns(framework: Framework, ends: list[int]) -> None:
    rows, columns = 768, 200  # more than 128 columns: with one column tile both orders are one
    plain = np.random.default_rng(1).integers(0, 256, (rows // 32, columns), dtype=np.uint8)
    packed = swizzle_scales(framework(np.ascontiguousarray(plain.T)))
    offsets = framework(np.asarray(ends, np.int32))
    got = np.asarray(split_expert_columns(packed, offsets)).ravel()
    wanted = np.zeros_like(got)
    begin = 0
    for end in [*ends, rows]:  # what follows the last expert is one more
        base = 512 * (begin // 128) * -(-columns // 128)
        for m, n in np.ndindex((end - begin) // 32, columns):
            tile = n // 128 * ((end - begin) // 128) + m // 4
            wanted[base + 512 * tile + n % 32 * 16 + n % 128 // 32 * 4 + m % 4] = plain[begin // 32 + m, n]
        begin = end
    assert np.array_equal(got, wanted)
    atoms = framework(got.reshape(-1, 32, 4, 4))
    assert np.array_equal(np.asarray(join_expert_columns(atoms, offsets, rows)), np.asarray(packed))


def test_expert_columns_under_jit_with_traced_offsets() -> None:
    packed = jnp.asarray(np.random.default_rng(2).integers(0, 256, (1, 2, 6, 32, 4, 4), dtype=np.uint8))
    for ends in ([256, 768], [512, 512]):
        offsets = jnp.asarray(ends, jnp.int32)
        got = jax.jit(split_expert_columns)(packed, offsets)
        assert np.array_equal(got, split_expert_columns(np.asarray(packed), np.asarray(offsets)))
        assert np.array_equal(jax.jit(join_expert_columns, static_argnums=2)(got, offsets, 768), packed)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="2 or 3"):
        swizzle_scales(np.zeros(4, np.uint8))
    with pytest.raises(ShapeError, match="its atom view"):
        atom_view(np.zeros((1, 2, 3), np.uint8))
    with pytest.raises(ShapeError, match="for 300 rows of 4 scales"):
        unswizzle_scales(swizzle_scales(np.zeros((128, 4), np.uint8)), 300, 4)
    with pytest.raises(ShapeError, match="experts are not a batch"):
        split_expert_columns(swizzle_scales(np.zeros((2, 128, 4), np.uint8)), np.asarray([128], np.int32))
    with pytest.raises(ShapeError, match="whole atoms"):
        join_expert_columns(np.zeros((3, 32, 4, 4), np.uint8), np.asarray([128, 256], np.int32), 256)
