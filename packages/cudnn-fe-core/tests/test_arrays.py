"""Pieces of references that a framework's own function does not give."""

from __future__ import annotations

from typing import Any

import array_api_compat
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.arrays import maximum_of


@pytest.mark.parametrize("wrap", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", [(6, 8), (64, 64), (7, 1000)])
def test_a_maximum_keeps_nan(wrap: Any, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[3, 5], x[4] = np.nan, -np.inf
    y = wrap(x)
    xp = array_api_compat.array_namespace(y)
    for axis in (0, 1, None):
        found = np.asarray(maximum_of(xp, y, axis))
        assert np.array_equal(found, np.max(x, axis=axis), equal_nan=True)
    if wrap is jnp.asarray:
        assert np.isnan(jax.jit(lambda z: maximum_of(xp, jnp.abs(z), 1))(y)).tolist() == np.isnan(x).any(1).tolist()
