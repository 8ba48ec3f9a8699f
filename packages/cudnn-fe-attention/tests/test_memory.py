"""What every definition holds in memory: blocks of bounded size beside its operands and results, no S^2."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention import tiles
from cudnn_fe.attention.exports import FAMILY
from cudnn_fe.core.op import resolve
from cudnn_fe_testkit.attention_cases import create_mask_plan
from cudnn_fe_testkit.attention_lengths import LENGTHS, Size

NAMES = sorted(resolve(target).name for target in FAMILY.op_targets)
# What does not grow (weights, windows, tables) is more than a mask of 256 x 256 pairs.
LARGE = (
    "aligned_hca_backward",
    "gated_attention_block_backward",
    "gated_attention_block_forward",
    "nsa_topk_reduction_forward",
)


def test_every_op_has_a_call_of_any_length() -> None:
    assert sorted(LENGTHS) == NAMES


def as_numpy(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return x.float().numpy().astype("bfloat16") if x.dtype == torch.bfloat16 else x.numpy()
    if isinstance(x, attention.MaskPlan):
        like = (np.zeros(shape, np.float32) for shape in x.shapes)
        return create_mask_plan(as_numpy(x.tensors[0]), *like, build_backward=True)
    if isinstance(x, attention.SavedForBackward):
        return replace(x, **{row.name: as_numpy(getattr(x, row.name)) for row in fields(x)})
    return x


def nbytes(x: Any) -> int:
    if is_dataclass(x):
        return sum(nbytes(getattr(x, row.name)) for row in fields(x))
    return getattr(x, "nbytes", 0)


def held(name: str, tokens: int) -> tuple[int, int]:
    """Peak of allocations of a call with NumPy's arrays, and the bytes of its operands and results."""
    operands, options = LENGTHS[name](Size(tokens, 16, 64))
    operands, options = tuple(map(as_numpy, operands)), {key: as_numpy(x) for key, x in options.items()}
    function = getattr(attention, name)
    gc.collect()
    tracemalloc.start()
    try:
        results = function(*operands, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak, sum(map(nbytes, (*operands, *options.values(), *results)))


def assert_no_square(name: str, tokens: int) -> None:
    """With memory ``c + a S + b S^2`` twice the length takes ``2 b S^2 - c`` more than twice: a mask is a byte a pair.

    As long as c is below 1.5 S^2, a mask shows. Where operands or results are a square themselves, no other one may be
    as large as both.
    """
    held(name, 128)  # what is imported or made once
    (peak, moved), (twice, moved_twice) = held(name, tokens), held(name, 2 * tokens)
    if moved_twice > 2.5 * moved:
        assert twice < 2 * moved_twice
    else:
        assert -1.5 < (twice - 2 * peak) / tokens**2 < 0.5


@pytest.mark.parametrize("name", NAMES)
def test_memory_follows_operands_and_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = 512 if name in LARGE else 256
    monkeypatch.setattr(tiles, "_ON_HOST", tokens**2 // 64)
    assert_no_square(name, tokens)


@pytest.mark.parametrize("name", ["dsa_indexer_fused_top_k_forward", "hstu_attention_forward", "sdpa_backward"])
def test_a_square_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile of all queries and keys."""
    monkeypatch.setattr(tiles, "_ON_HOST", 1 << 24)
    with pytest.raises(AssertionError):
        assert_no_square(name, 256)
