"""The portable kernels, interpreted on a CPU, against float64: sequences and their edges, widths, layouts, decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe.conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_update
from cudnn_fe_testkit.causal_conv import LENGTHS, Case, exact, make_case, sum_tolerance, tolerance
from cudnn_fe_testkit.compare import assert_close
from cudnn_fe_testkit.interpreted import interpreted, missing_interpreter

pytestmark = pytest.mark.skipif(missing_interpreter() is not None, reason=f"not interpreted: {missing_interpreter()}")
KINDS = (
    (1, "float32"),
    (2, "bfloat16"),
    (3, "float16"),
    (4, "float64"),
    (5, "bfloat16"),
    (8, "bfloat16"),
    (8, "float32"),
)


def check(case: Case, silu: bool, states: bool, kind: str) -> None:
    """Forward and backward; with ``states``, final ones and their gradient too."""
    activation = "silu" if silu else None
    given: dict[str, Any] = {"cu_seqlens": case.cu_seqlens, "initial_states": case.initial}
    operands = (case.x, case.weight, case.bias, activation)
    width, tokens = case.weight.shape[1], case.x.shape[0] * case.x.shape[2]
    leaves = [None if t is None else t.requires_grad_() for t in case.wide()]
    y, final = exact(leaves[0], leaves[1], leaves[2], silu, case.offsets, leaves[3])
    made = torch.Generator().manual_seed(1)
    dy = torch.empty_like(case.x).normal_(generator=made)
    d_final = torch.empty_like(final).normal_(generator=made).to(case.x.dtype) if states else None
    with interpreted():
        found, last = causal_conv1d(*operands, return_final_states=True, **given)
        got = causal_conv1d_backward(dy, *operands, d_final_states=d_final, **given)
    assert_close(found, y.detach(), tolerance(width, kind), "y")
    assert torch.equal(last.double(), final.detach())
    loss = (y * dy.double()).sum()
    (loss if d_final is None else loss + (final * d_final.double()).sum()).backward()
    sums = sum_tolerance(tokens, width, kind, kind)
    bounds = (tolerance(width, kind), sums, sums, tolerance(width, kind))
    for name, leaf, bound in zip(("dx", "dweight", "dbias", "d_initial_states"), leaves, bounds, strict=True):
        if leaf is not None:
            assert_close(got[name], leaf.grad, bound, name)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("time", [1, 3, 5, 17, 136])
def test_batches(time: int, channels_last: bool) -> None:
    check(make_case(2, 37, time, 4, "bfloat16", channels_last=channels_last), True, False, "bfloat16")


@pytest.mark.parametrize(
    ("width", "kind", "states"), [*((*row, False) for row in KINDS), (4, "bfloat16", True), (3, "float32", True)]
)
def test_packed_sequences(width: int, kind: str, states: bool) -> None:
    """Along time and along channels: empty ones, short ones, rows that no vector divides."""
    for lengths, channels_last in (((*LENGTHS, 3), False), ((1,) * 39, False), (LENGTHS, width == 4)):
        initial = states and width > 1
        case = make_case(1, 5, 0, width, kind, lengths=lengths, initial=initial, channels_last=channels_last)
        check(case, width != 2, initial, kind)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_a_boundary_at_every_position(states: bool, channels_last: bool) -> None:
    """Without states and along time, bits say where sequences start; else a cursor does."""
    for first in range(0, 41, 1 if not (states or channels_last) else 5):
        lengths = (first, 40 - first)
        case = make_case(1, 8, 0, 4, "bfloat16", lengths=lengths, initial=states, channels_last=channels_last)
        check(case, True, states, "bfloat16")


@pytest.mark.parametrize("ring", [False, True])
def test_decoding(ring: bool) -> None:
    """The definition's bits and states, rows that are left out among them."""
    made = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=made).bfloat16() for shape in ((5, 40), (40, 4), (40,)))
    slots = torch.tensor([2, -1, 0, 6, 3], dtype=torch.int32)
    seen = torch.tensor([0, 7, 3, 2, 9], dtype=torch.int32) if ring else None
    states = [torch.randn(7, 40, 5, generator=torch.Generator().manual_seed(1)).bfloat16() for _ in range(2)]
    options: dict[str, Any] = {"cache_seqlens": seen, "conv_state_indices": slots}
    wanted = causal_conv1d_update(x, states[0], weight, bias, "silu", **options)
    with interpreted(), torch.no_grad():
        got = causal_conv1d_update(x, states[1], weight, bias, "silu", **options)
    assert_close(got, wanted, tolerance(4, "bfloat16"))
    assert torch.equal(states[0], states[1])
