"""Definitions on a GPU: what a CPU gives, the same bits again, and no host reads, so that graphs hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe_testkit.compare import rel_rms, to_float64

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

T, N, H, D, K = 24, 20, 2, 32, 6


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    values = np.random.default_rng(sum(shape)).integers(low, high, shape)
    return torch.from_numpy(values.astype(np.int32))


def ends(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


PACKED = {
    "cu_seqlens_q": ends(0, 10, 10, 24),
    "cu_seqlens_k": ends(0, 4, 9, 20),
    "max_seqlen_q": 14,
    "max_seqlen_k": 11,
}
INDEXER = (normal(T, H, D), normal(N, 1, D, seed=1), normal(T, H, seed=2))
SPARSE = (normal(T, H, D), normal(N, D, seed=1))
LISTS = integers(-1, N, T, K)
SINK = normal(H)
DENSE = (normal(1, T, H, D), normal(1, T, H, seed=1), normal(1, N, D, seed=2))
SCORES = normal(1, T, N).abs()
TOKENS = (normal(T, H, 8), normal(T, H, 8, seed=1), normal(T, H, 8, seed=2))
BETA = normal(T, H).sigmoid()
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("dsa_indexer_forward", INDEXER, {**PACKED, "ratio": 1, "return_lse": True}),
    ("dsa_indexer_fused_top_k_forward", (*INDEXER, 3), {**PACKED, "ratio": 1, "return_lse": True}),
    ("dsa_indexer_top_k_forward", (normal(T, N), integers(0, N, T // 3), 5, 3), {}),
    ("dsa_local_to_global_forward", (LISTS, 0, PACKED["cu_seqlens_q"], PACKED["cu_seqlens_k"]), {}),
    ("dsa_compactify_forward", (LISTS,), {}),
    ("dsa_sparse_indexer_score_forward", (DENSE[0], DENSE[2], DENSE[1], LISTS[None]), {}),
    ("dsa_sparse_attn_score_forward", (DENSE[0], DENSE[2], DENSE[1] + 3, LISTS[None], 0.2), {}),
    ("dsa_dense_indexer_score_forward", INDEXER, {**PACKED, "ratio": 1}),
    ("dsa_dense_attn_score_forward", (*INDEXER, 0.2), {**PACKED, "ratio": 1}),
    ("dsa_indexer_backward", (*DENSE, normal(1, T, K).abs(), torch.full((1, T, K), 1 / K), LISTS[None], normal(1)), {}),
    (
        "dsa_dense_indexer_backward",
        (*DENSE, SCORES, SCORES.sum(-1), SCORES, SCORES.logsumexp(-1), normal(1)),
        {"ratio": 1},
    ),
    ("dsa_sparse_attention_forward", (*SPARSE, LISTS), {"attn_sink": SINK, "indexer_topk": 3}),
    (
        "dsa_sparse_attention_backward",
        (*SPARSE, SPARSE[0], normal(T, H, D, seed=3), normal(T, H) + 3, SINK, LISTS),
        {"deterministic": True},
    ),
    (
        "aligned_hca_backward",
        (
            normal(128, H, D),
            normal(264, D),
            normal(128, H, D, seed=1),
            normal(128, H, D, seed=2),
            normal(128, H) + 5,
            SINK,
        ),
        {"cp_rank": 1, "cp_size": 4},
    ),
    (
        "gated_delta_net_forward",
        (*TOKENS, -normal(T, H).abs(), BETA, ends(0, 9, 9, T)),
        {"output_final_state": True, "use_qk_l2norm_in_kernel": True, "checkpoint_every_n_tokens": 4},
    ),
    (
        "gated_delta_net_backward",
        (*TOKENS, -normal(T, H).abs(), BETA, ends(0, 9, 9, T), normal(T, H, 8, seed=5)),
        {"use_qk_l2norm_in_kernel": True, "safe_gate": True, "a_log": normal(H)},
    ),
    (
        "kimi_delta_attention_forward",
        (*TOKENS, -normal(T, H, 8).abs(), BETA, ends(0, 9, 9, T)),
        {"output_final_state": True, "use_qk_l2norm_in_kernel": True},
    ),
    (
        "kimi_delta_attention_backward",
        (*TOKENS, -normal(T, H, 8).abs(), BETA, ends(0, 9, 9, T), normal(T, H, 8, seed=5)),
        {"use_qk_l2norm_in_kernel": True, "initial_state": normal(3, H, 8, 8)},
    ),
]


def moved(x: Any) -> Any:
    return x.cuda() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
def test_definition(name: str) -> None:
    operands, options = next((operands, options) for known, operands, options in CASES if known == name)
    function = getattr(attention, name)
    wanted = [x for x in function(*operands, **options) if x is not None]
    on_gpu = tuple(map(moved, operands)), {key: moved(value) for key, value in options.items()}

    def run() -> list[torch.Tensor]:
        return [x for x in function(*on_gpu[0], **on_gpu[1]) if x is not None]

    first, again = run(), run()
    for got, same, reference in zip(first, again, wanted, strict=True):
        assert got.is_cuda
        assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(same))
        if got.dtype == torch.int32:
            assert torch.equal(got.cpu(), reference)
        else:
            # Both are float32 sums of at most a few thousand terms, taken in another order.
            assert rel_rms(to_float64(got), to_float64(reference)) <= 64 * 2.0**-24
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for x in captured:
        x.zero_()
    graph.replay()
    assert all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(captured, first, strict=True))
