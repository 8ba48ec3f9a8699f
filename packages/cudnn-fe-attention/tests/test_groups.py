"""Grouped heads of every op that has them: what key heads repeated for each of their query heads give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe import attention
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close

# Arguments are spread from lists here, which the type checker cannot count.
ops: Any = attention

RATIOS = [(4, 4), (4, 1), (8, 2)]  # a key head per query head, one for all, groups of four
ROWS, KEYS, D = 70, 40, 16


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block_sparse(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """Lists that differ from head to head, some empty."""
    heads = q.shape[1]
    counts = torch.arange(2 * heads, dtype=torch.int32).reshape(1, heads, 2) % 3 % 2
    lists = torch.zeros(1, heads, 2, 1, dtype=torch.int32)
    options = {"q2k_block_nums": counts, "sparse_block_size": 64}
    o, lse = ops.block_sparse_attention_forward(q, k, v, lists, **options)
    return o, lse, *ops.block_sparse_attention_backward(o.sin(), q, k, v, o, lse, lists, **options)


def fp8(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    lists = torch.zeros(1, q.shape[1], 2, 1, dtype=torch.int32)
    out = ops.block_sparse_attention_fp8_forward(*(x.bfloat16() for x in (q, k, v)), lists)
    return (out["o_tensor"].float(),)


def compression(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    return tuple(ops.nsa_compression_attention_forward(q, k[:, :, :8], v[:, :, :8], enable_lse=True))


def window(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    return tuple(ops.nsa_sliding_window_attention_forward(q, k, v, left_bound=9, right_bound=2))


def selection(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """Lists belong to key heads, so that those of one group are the same here."""
    q, k, v = (x[0, :, :KEYS].transpose(0, 1) for x in (q, k, v))
    heads, group = k.shape[1], torch.arange(k.shape[1]) * (2 if q.shape[1] == 8 else 1) // k.shape[1]
    lists = ((torch.arange(KEYS)[:, None] + group) % 3)[..., None].int()
    ends, counts = torch.tensor([0, KEYS], dtype=torch.int32), torch.ones(KEYS, heads, dtype=torch.int32)
    return tuple(ops.nsa_selection_attention_forward(q, k, v, lists, counts, ends, block_size=16, is_causal=True))


def flex(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    ends = (torch.arange(ROWS, dtype=torch.int32) % (KEYS + 1)).reshape(1, 1, ROWS)
    plan = ops.create_mask_plan(ends, q, k, v, build_backward=True)
    o, lse, top = ops.flex_attention_forward(q, k, v, plan)
    grads = ops.flex_attention_backward(o.sin(), q, k, v, o, lse, plan)
    return o, lse, top, *(x.transpose(1, 2) for x in grads)


def sdpa(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    heads = q.shape[1]
    o, lse = normal(1, heads, ROWS, D, seed=9), normal(1, heads, ROWS, 1, seed=10) + 4
    more = {"bias_tensor": normal(1, heads, ROWS, KEYS, seed=7), "sink_token": normal(1, heads, 1, 1, seed=8)}
    dq, dk, dv, *others = ops.sdpa_backward(q, k, v, o, o.sin(), lse, is_causal=True, **more)
    return *others, dq, dk, dv


def indexer(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """Values stand for nothing here: weights of the heads are made beside them."""
    del v
    weights = normal(1, ROWS, q.shape[1], seed=11)
    given = q.transpose(1, 2), k.transpose(1, 2)
    return (
        *ops.dsa_dense_indexer_score_forward(*given, weights, ratio=2),
        *ops.dsa_dense_attn_score_forward(*given, weights + 3, 0.2, ratio=2),
    )


@pytest.mark.parametrize(("heads", "key_heads"), RATIOS)
@pytest.mark.parametrize("run", [block_sparse, fp8, compression, window, selection, flex, sdpa, indexer])
def test_groups_are_repeated_key_heads(run: Any, heads: int, key_heads: int) -> None:
    """The last three results of an op with gradients are those of Q, K and V; the latter are sums over each group."""
    q = normal(1, heads, ROWS, D, seed=1)
    k, v = (normal(1, key_heads, KEYS, D, seed=seed) for seed in (2, 3))
    group = heads // key_heads
    got, wanted = run(q, k, v), run(q, *(x.repeat_interleave(group, 1) for x in (k, v)))
    assert len(got) == len(wanted)
    for position, (x, reference) in enumerate(zip(got, wanted, strict=True)):
        if x.shape != reference.shape:
            assert position >= len(got) - 2
            reference = reference.unflatten(1, (key_heads, group)).sum(2)
        assert_close(x, reference, attention_tolerance("float32", 1, heads * ROWS), str(position))
