"""The references' pieces that know nothing of attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from array_api_compat import array_namespace

from cudnn_fe.attention.arrays import round_through
from cudnn_fe.attention.fake_quant import nvfp4_values
from cudnn_fe.attention.gated_block.quantised import step_below
from cudnn_fe.attention.top_k import best_first
from cudnn_fe_testkit.inputs import Framework, convert, normal


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn"])
def test_roundings_survive_the_compiler(kind: str) -> None:
    """XLA may drop a cast to 16 bits and back; the references' rounding is part of their definition."""
    import jax
    import jax.numpy as jnp

    x = normal((1000,), seed=1)
    wanted = x.astype(getattr(ml_dtypes, kind, kind)).astype(np.float32)
    assert not np.array_equal(x, wanted)
    assert np.array_equal(round_through(x, kind), wanted)
    assert np.array_equal(jax.jit(lambda y: round_through(y, kind))(jnp.asarray(x)), wanted)


def test_best_first_orders_equals_and_leaves_nan_last() -> None:
    import array_api_compat.numpy as xp

    scores = np.asarray([[1.0, 3.0, np.nan, 3.0, -np.inf, 0.0]], np.float32)
    valid = np.asarray([[True, True, True, True, True, False]])
    values, where = best_first(xp, scores, valid, 8)
    assert where.tolist() == [[1, 3, 0, 4, 2, -1, -1, -1]]
    assert np.array_equal(values, [[3, 3, 1, -np.inf, np.nan, -np.inf, -np.inf, -np.inf]], equal_nan=True)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_nan_reaches_scales_and_maxima(framework: Framework) -> None:
    x = normal((384, 64))
    x[3, 5] = np.nan
    given = convert(x, framework)
    xp = array_namespace(given)
    bad = np.isnan(np.asarray(nvfp4_values(xp, given)))
    assert bad[3, :16].all()  # of its group of 16, whose scale is NaN
    assert bad.sum() == 16
    assert np.isnan(np.asarray(step_below(xp, given, 1)[1])).all()
