"""The pieces of attention: steps of queries change neither results nor, with the sequence, the memory of a step."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from cudnn_fe.attention import hstu_attention_backward, nsa_sliding_window_attention_forward, pieces
from cudnn_fe_testkit.compare import assert_close
from cudnn_fe_testkit.inputs import normal


def test_memory_grows_with_the_sequence_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """All scores of 2048 tokens would take 16 MiB, and a step of 2**16 takes a quarter MiB, a few times over."""
    q, k, v = (normal((1, 1, 2048, 8), seed=seed) for seed in range(3))
    whole = nsa_sliding_window_attention_forward(q, k, v, left_bound=100)
    monkeypatch.setattr(pieces, "_STEP_ELEMENTS", 1 << 16)
    tracemalloc.start()
    stepped = nsa_sliding_window_attention_forward(q, k, v, left_bound=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    for name in ("o_tensor", "stats_tensor"):
        assert_close(stepped[name], whole[name], 2.0**-20, name)


@pytest.mark.parametrize("elements", [1, 70, 1 << 22])
def test_steps_of_any_size_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """One query a step, a last step that is filled up with repeated queries, and all at once."""
    do, q, k, v = (normal((23, 1, 8), seed=seed) for seed in range(4))
    ends = np.asarray([0, 23], np.int32)
    wanted = hstu_attention_backward(do, q, k, v, ends, ends, 23, 23, (4, 1))
    monkeypatch.setattr(pieces, "_STEP_ELEMENTS", elements)
    for name, got in hstu_attention_backward(do, q, k, v, ends, ends, 23, 23, (4, 1)).items():
        assert_close(got, wanted[name], 2.0**-20, name)
