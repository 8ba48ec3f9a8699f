"""The pieces of attention: tiles change neither results nor, with the sequence, what is held in memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from cudnn_fe import attention
from cudnn_fe.attention import tiles
from cudnn_fe_testkit.compare import assert_close
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
hstu_attention_backward: Any = attention.hstu_attention_backward
nsa_compression_attention_forward: Any = attention.nsa_compression_attention_forward
nsa_selection_attention_forward: Any = attention.nsa_selection_attention_forward
nsa_sliding_window_attention_forward: Any = attention.nsa_sliding_window_attention_forward


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_32k_tokens_take_no_square_of_memory(framework: Framework) -> None:
    """All scores of 32,768 tokens are 4 GiB in float32; a tile has 4 MiB. Tiles that the window hides cost their mask.

    NumPy's memory is counted; JAX runs as well, compiled once, since its tiles are skipped by another mechanism.
    """
    tokens, window = 1 << 15, 300
    q, k, v = (normal((1, 1, tokens, 8), seed=seed) for seed in range(3))
    arrays = [convert(x, framework) for x in (q, k, v)]
    tracemalloc.start()
    results = nsa_sliding_window_attention_forward(*arrays, left_bound=window)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20
    o, lse = (np.asarray(results[name]) for name in ("o_tensor", "stats_tensor"))
    for row in (0, 1023, 1024, 5000, tokens - 1):
        first = max(0, row - window + 1)
        s = q[0, 0, row].astype(np.float64) @ k[0, 0, first : row + 1].T / 8**0.5
        p = np.exp(s - s.max())
        assert_close(o[0, 0, row], p @ v[0, 0, first : row + 1] / p.sum(), 2.0**-18)
        assert abs(lse[0, 0, row, 0] - s.max() - np.log(p.sum())) < 2.0**-16


@pytest.mark.parametrize("elements", [1, 300, 1 << 20])
@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_tiles_of_any_size_give_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, elements: int, framework: Framework
) -> None:
    """One query at a time, tiles whose last ones are filled up with repeated rows, and all at once."""
    do, q, k, v = (convert(normal((35, 1, 8), seed=seed), framework) for seed in range(4))
    ends = convert(np.asarray([0, 35], np.int32), framework)
    wanted = hstu_attention_backward(*(np.asarray(x) for x in (do, q, k, v, ends, ends)), 35, 35, (4, 1))
    monkeypatch.setattr(tiles, "_ON_HOST", elements)
    # The length, a hint, makes it a problem that JAX has not compiled with other tiles.
    for name, got in hstu_attention_backward(do, q, k, v, ends, ends, 35, 35 + elements % 7, (4, 1)).items():
        assert_close(got, wanted[name], 2.0**-20, name)


@pytest.mark.parametrize("elements", [1, 300])
def test_tiles_of_any_size_give_the_same_softmax(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Rounding of the probabilities does not depend on how keys are cut: in half precision only sums' order does."""
    q, k, v = (4 * normal((1, 2, 70, 8), "float16", seed=seed) for seed in range(3))

    def run() -> Any:
        return nsa_compression_attention_forward(q, k, v, enable_lse=True, o_dtype="float32")

    wanted = run()
    monkeypatch.setattr(tiles, "_ON_HOST", elements)
    for name, got in run().items():
        assert_close(got[:, :, 1:], wanted[name][:, :, 1:], 2.0**-20, name)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_tiles_that_hide_all_keys_of_a_query_leave_no_trace(
    monkeypatch: pytest.MonkeyPatch, framework: Framework
) -> None:
    """Each query sees one block, the others come before and after it; every fifth query sees none."""
    tokens, place = 70, np.arange(70)
    lists = ((place + 3) % 5)[:, None, None].astype(np.int32)
    counts = (place % 5 > 0)[:, None].astype(np.int32)
    q, k, v = (normal((tokens, 1, 8), seed=seed) for seed in range(3))
    q[::5] = np.nan  # of those that see nothing
    given = (q, k, v, lists, counts, np.asarray([0, tokens], np.int32))
    wanted = nsa_selection_attention_forward(*given, block_size=16)
    monkeypatch.setattr(tiles, "_ON_HOST", 300)
    got = nsa_selection_attention_forward(*(convert(x, framework) for x in given), block_size=16)
    for name, result in got.items():
        found, reference = np.asarray(result), wanted[name]
        assert (found[::5] == {"o_tensor": 0, "l_tensor": 0, "m_tensor": -np.inf}[name]).all()
        assert_close(found[counts[:, 0] > 0], reference[counts[:, 0] > 0], 2.0**-20, name)


def test_tiles_are_of_bounded_size_and_wide_for_few_queries_or_where_keys_are_gathered() -> None:
    like, long = np.zeros(1), 1 << 15

    def extents(outer: int, rows: int, keys: int) -> tuple[tuple[int, int], tuple[int, int]]:
        square, wide = (tiles._extents(like, outer, rows, keys, gathered=gathered) for gathered in (False, True))
        return square, wide

    assert extents(1, long, long) == ((1024, 1024), (128, 8192))
    assert extents(64, long, long) == ((128, 128), (128, 128))
    assert extents(1 << 20, 100, 100) == ((1, 16), (1, 16))  # at least 16 keys: groups that share a scale stay whole
    assert extents(1, 1, long) == ((1, long), (1, long))
    assert extents(1, 5, 7) == ((5, 7), (5, 7))
    assert extents(1, long, 100) == ((10485, 100), (10485, 100))
    assert tiles.rows_per_step(like, long, 1 << 18) == 4
