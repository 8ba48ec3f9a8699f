"""Thousands of random routings, each against the definition expert by expert."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_wgrad_forward,
)
from cudnn_fe_testkit.moe import ends_of, halves, products, weight_gradients

K, N = 3, 32


@st.composite
def routings(draw: st.DrawFn) -> tuple[list[int], int, int]:
    counts = draw(st.lists(st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=12))
    return counts, draw(st.integers(0, 9)), draw(st.integers(0, 2**31))


@settings(max_examples=10000, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(routings())
def test_random_routings(routing: tuple[list[int], int, int]) -> None:
    """Quarters of small integers: products and sums are exact, so results are equal to the last bit."""
    counts, tail, seed = routing
    ends, m, count = ends_of(counts), sum(counts) + tail, len(counts)
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) / 4 for shape in ((m, K), (count, N, K)))
    a[ends[-1] :] = np.nan  # never read
    c = np.zeros((m, 2 * N), np.float32)
    c[:, :N] = rng.integers(-2, 3, (m, N))
    ones, prob = np.ones(count, np.float32), np.ones(m, np.float32)
    exact = products(np.nan_to_num(a).astype(np.float64), b.astype(np.float64), ends)

    buffer = np.full((m, N), 9.0, np.float32)
    grouped_gemm_forward(a, ends, ones, b, prob_tensor=prob, d_dtype="float32", d_tensor=buffer)
    assert np.array_equal(buffer[: ends[-1]], exact[: ends[-1]])
    assert (buffer[ends[-1] :] == 9).all()  # never written

    both = np.concatenate((b, b), axis=1)  # the same gates and ups
    half = grouped_gemm_glu_forward(a, None, ends, ones, both, prob_tensor=prob, d_dtype="float32")["d_tensor"]
    # exp, and four float32 operations.
    square = np.square(exact) / (1 + np.exp(-exact))
    assert (np.abs(half - square)[: ends[-1]] <= 2.0**-20 * square[: ends[-1]]).all()
    assert not half[ends[-1] :].any()

    (w,) = grouped_gemm_wgrad_forward(a.T, a, None, None, ends, wgrad_dtype="float32")
    wide = a.astype(np.float64)
    assert np.array_equal(w, weight_gradients(wide, wide, ends))

    dprob = np.zeros(m, np.float32)
    d = grouped_gemm_glu_backward(a, c, None, ends, ones, ones, prob, dprob, b, d_dtype="float32")["d_row_tensor"]
    gate, _ = halves(c.astype(np.float64))
    silu = gate / (1 + np.exp(-gate))
    # exp, three float32 operations and the product, which is exact.
    bound = 2.0**-20 * np.abs(exact * silu)
    assert (np.abs(halves(d.astype(np.float64))[1] - exact * silu)[: ends[-1]] <= bound[: ends[-1]]).all()
