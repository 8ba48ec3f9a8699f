"""One small call of every attention op, as torch tensors on the CPU, for tests that go over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations

__all__ = ["CASES", "create_mask_plan", "normal"]

# Arguments are spread here, which the type checker cannot count.
create_mask_plan: Any = attention.create_mask_plan

T, N, H, D, K = 24, 20, 2, 32, 6


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Standard normal float32 numbers of that shape."""
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
BLOCKS = tuple(normal(1, H, 128, 16, seed=seed) for seed in range(4))
BLOCK_LISTS = integers(0, 2, 1, H, 2, 2)
HISTORIES = (ends(0, 9, 9, T), ends(0, 12, 14, T), 15, 15)
FLEX = (TOKENS[0], TOKENS[1][:N, :1], TOKENS[2][:N, :1])
BOUNDS = np.sort(np.random.default_rng(0).integers(0, 5, (H, 3, T)), axis=1).astype(np.int32)
PLAN = create_mask_plan(torch.from_numpy(BOUNDS), *FLEX, **PACKED, build_backward=True)
GEOMETRY = attention.GatedAttentionBlockGeometry(d_model=16, h_q=2, h_kv=1, d_head=64, rope_dim=8, window_left=5)
GATED = tuple(
    x.requires_grad_()
    for x in (normal(2, 12, 16), normal(384, 16) / 4, normal(64), normal(64, seed=1), normal(2, 12, 8),
              normal(2, 12, 8, seed=1), normal(16, 128) / 8)
)  # fmt: skip
gated_attention_block_forward: Any = attention.gated_attention_block_forward
RECORD = gated_attention_block_forward(*GATED, GEOMETRY, save_for_backward=True)["saved"]
SERVED = attention.GatedAttentionBlockGeometry(16, 2, 1, 64, 8, causal_bottom_right=True)
SERVED_BLOCK = tuple(
    x.detach().reshape(-1, x.shape[-1]) if x.ndim == 3 and i in (0, 4, 5) else x.detach() for i, x in enumerate(GATED)
)
QSA: Any = declarations.QsaSpec(4, 4, "indexer", True, index_heads=2, index_head_dim=64)
LISTED = attention.GatedAttentionBlockGeometry(16, 2, 1, 64, 8, qsa=QSA)
LISTED_BLOCK = tuple(
    torch.cat([x.detach(), normal(192, 16) / 4])
    if i == 1
    else x.detach().repeat(1, 2, 1)
    if x.ndim == 3
    else x.detach()
    for i, x in enumerate(GATED)
)
POOLS = (torch.zeros(3, 1, 16, 64), torch.zeros(3, 1, 16, 64))
SLOTS = torch.cat([torch.arange(32, 42), torch.arange(0, 14)])  # of pages 2 and 0
STEPPED = attention.GatedAttentionBlockGeometry(16, 2, 1, 64, 8, causal_bottom_right=True, qsa=QSA)
STEPPED_BLOCK = tuple(x[:1, :5] if x.ndim == 3 else x for x in LISTED_BLOCK)
PLACES = torch.ones(1, 16, 8)
TWICE = tuple(normal(2 * T, H, 8, seed=seed) for seed in (1, 2))
LAYER = (normal(2, 9, H, 8), normal(2, 9, H), -normal(H).abs(), normal(2, 9, 1, 6), normal(2, 9, 1, 6, seed=1))
SPANS: tuple[tuple[str, tuple[Any, ...], tuple[int, ...], tuple[Any, ...], tuple[int, ...]], ...] = (
    ("gated_delta_net", TOKENS, (T, H), (BETA,), ()),
    ("kimi_delta_attention", TOKENS, (T, H, 8), (BETA,), ()),
    ("gated_delta_net_v2", TOKENS, (T, H, 8), (normal(T, H, 8).sigmoid(), normal(T, H, 8, seed=3)), ()),
    ("gated_delta_product", (TOKENS[0], *TWICE), (T, H), (normal(2 * T, H).sigmoid(),), (2,)),
)
LISTS_OF_BLOCKS = integers(0, 2, T, H, 2)
SPAN = (ends(0, T), ends(0, T))
ROWS = (normal(T, 16), normal(T, 16, seed=1), normal(4, 16, seed=2))
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
    (
        "gated_delta_net_v2_forward",
        (*TOKENS, -normal(T, H, 8).abs(), normal(T, H, 8), normal(T, H, 8, seed=3), ends(0, 9, 9, T)),
        {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "output_final_state": True},
    ),
    (
        "gated_delta_net_v2_backward",
        (*TOKENS, -normal(T, H, 8).abs(), normal(T, H, 8), normal(T, H, 8, seed=3), ends(0, 9, 9, T), TOKENS[2]),
        {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True},
    ),
    (
        "gated_delta_product_forward",
        (TOKENS[0], *TWICE, -normal(T, H).abs(), normal(2 * T, H).sigmoid(), ends(0, 9, 9, T), 2),
        {"use_qk_l2norm_in_kernel": True},
    ),
    (
        "gated_delta_product_backward",
        (TOKENS[0], *TWICE, -normal(T, H).abs(), normal(2 * T, H).sigmoid(), ends(0, 9, 9, T), 2, TOKENS[2]),
        {"use_qk_l2norm_in_kernel": True},
    ),
    ("mamba2_forward", LAYER, {"D": normal(H), "z": normal(2, 9, H, 8, seed=2), "return_final_state": True}),
    ("mamba2_backward", (normal(2, 9, H, 8, seed=3), *LAYER), {"D": normal(H), "z": normal(2, 9, H, 8, seed=2)}),
    (
        "gated_attention_block_paged_forward",
        (*SERVED_BLOCK, SERVED, *POOLS, SLOTS),
        {
            "kv_source": "paged",
            "block_table": torch.tensor([[2], [0]], dtype=torch.int32),
            "kv_lens": ends(10, 14),
            "seq_lens": ends(10, 14),
            "thd": True,
        },
    ),
    *(
        (
            f"{rule}_summary_forward",
            (*operands[1:3], -normal(*gate).abs(), *strengths, ends(0, 9, 9, T), *updates),
            {"use_qk_l2norm_in_kernel": True},
        )
        for rule, operands, gate, strengths, updates in SPANS
    ),
    *(
        (
            f"{rule}_summary_backward",
            (*operands[:2], -normal(*gate).abs(), strengths[0], TOKENS[2], ends(0, 9, 9, T), *updates),
            {"use_qk_l2norm_in_kernel": True, "output_transition": True},
        )
        for rule, operands, gate, strengths, updates in SPANS
    ),
    (
        "block_sparse_attention_fp8_forward",
        (*(normal(1, H, 128, 64, seed=seed).bfloat16() for seed in range(3)), BLOCK_LISTS),
        {"sparse_block_size": 64},
    ),
    (
        "nsa_selection_attention_forward",
        (*TOKENS, LISTS_OF_BLOCKS, ends(*[2] * T).reshape(T, 1).expand(T, H), *SPAN),
        {"block_size": 16},
    ),
    (
        "nsa_topk_reduction_forward",
        (TOKENS[0], TOKENS[1][:6], normal(T, H).abs(), ends(0, 8, T), ends(0, 2, 6)),
        {"k_value": 2},
    ),
    ("csa_compressor_forward", (*ROWS, ends(0, 14, T), ends(0, 3, 5)), {"ratio": 4, "total_comp": 5}),
    (
        "csa_compressor_backward",
        (*ROWS, ends(0, 14, T), ends(0, 3, 5), normal(5, 8)),
        {"ratio": 4, "deterministic": True},
    ),
    (
        "gated_attention_block_sparse_forward",
        (*LISTED_BLOCK, LISTED),
        {"w_iq_norm": normal(64), "w_ik_norm": normal(64, seed=1)},
    ),
    (
        "gated_attention_block_paged_sparse_forward",
        (*STEPPED_BLOCK, STEPPED, *POOLS, torch.arange(5)),
        {
            "kv_source": "paged",
            "block_table": torch.zeros(1, 1, dtype=torch.int32),
            "kv_lens": ends(5),
            "w_iq_norm": normal(64),
            "w_ik_norm": normal(64, seed=1),
            "index_kv_cache": torch.zeros(3, 4, 1, 64),
            "index_state_cache": torch.zeros(2, 8, 1, 64),
            "index_state_block_table": torch.ones(1, 1, dtype=torch.int32),
            "cos_pos": PLACES,
            "sin_pos": 0 * PLACES,
        },
    ),
    ("block_sparse_attention_forward", (*BLOCKS[:3], BLOCK_LISTS), {"sparse_block_size": 64}),
    (
        "block_sparse_attention_backward",
        (normal(1, H, 128, 16, seed=4), *BLOCKS, normal(1, H, 128) + 3, BLOCK_LISTS),
        {"sparse_block_size": 64},
    ),
    ("hstu_attention_forward", (*TOKENS, *HISTORIES), {"window_size": (3, 0)}),
    ("hstu_attention_backward", (normal(T, H, 8, seed=6), *TOKENS, *HISTORIES), {"window_size": (-1, 0)}),
    (
        "nsa_compression_attention_forward",
        (TOKENS[0], TOKENS[1][:6], TOKENS[2][:6], ends(0, 8, T), ends(0, 2, 6)),
        {"enable_lse": True},
    ),
    ("nsa_sliding_window_attention_forward", (*BLOCKS[:3],), {"left_bound": 20}),
    ("flex_attention_forward", (*FLEX, PLAN), {}),
    ("flex_attention_backward", (normal(T, H, 8, seed=7), *FLEX, normal(T, H, 8), normal(H, T) + 4, PLAN), {}),
    (
        "sdpa_backward",
        (*BLOCKS, normal(1, H, 128, 16, seed=5), normal(1, H, 128, 1) + 3),
        {
            "is_causal": True,
            "causal_bottom_right": True,
            "window_size_left": 50,
            "seq_q_lens": ends(100),
            "seq_kv_lens": ends(120),
            "sink_token": normal(1, H, 1, 1),
            "bias_tensor": normal(1, H, 128, 128),
        },
    ),
    # Scores of 0: probabilities are far from where the quantiser decides, whoever computes the exponential.
    ("nvfp4_attention_qat_backward", (BLOCKS[1], 0 * BLOCKS[0], *BLOCKS[1:], normal(1, H, 128) + 5), {}),
    ("gated_attention_block_forward", (*GATED, GEOMETRY), {"seq_lens": ends(9, 0), "return_lse": True}),
    ("gated_attention_block_backward", (normal(2, 12, 16, seed=3), RECORD, *GATED[1:], GEOMETRY), {}),
]
