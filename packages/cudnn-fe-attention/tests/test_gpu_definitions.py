"""Definitions on a GPU: what a CPU gives, the same bits again, and no host reads, so that graphs hold them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward
from cudnn_fe_testkit.compare import rel_rms, to_float64
from cudnn_fe_testkit.gated_block_quantised import QuantisedOperands
from cudnn_fe_testkit.inputs import convert

create_mask_plan: Any = attention.create_mask_plan  # arguments are spread here, which the type checker cannot count

Fwd: Any = legacy_forward.GatedAttentionBlockFwd

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
POOLS = (torch.zeros(3, 1, 16, 64), torch.zeros(3, 1, 16, 64))
SLOTS = torch.cat([torch.arange(32, 42), torch.arange(0, 14)])  # of pages 2 and 0
TWICE = tuple(normal(2 * T, H, 8, seed=seed) for seed in (1, 2))
LAYER = (normal(2, 9, H, 8), normal(2, 9, H), -normal(H).abs(), normal(2, 9, 1, 6), normal(2, 9, 1, 6, seed=1))
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


def moved(x: Any) -> Any:
    if isinstance(x, attention.MaskPlan):
        like = (torch.empty(shape, device="cuda") for shape in x.shapes)
        lengths = {"cu_seqlens_q": x.tensors[1].cuda(), "cu_seqlens_k": x.tensors[2].cuda()}
        most = {"max_seqlen_q": x.metadata.max_seqlen_q, "max_seqlen_k": x.metadata.max_seqlen_k}
        return create_mask_plan(x.tensors[0].cuda(), *like, **lengths, **most, build_backward=True)
    if isinstance(x, attention.SavedForBackward):
        return replace(x, **{row.name: moved(getattr(x, row.name)) for row in fields(x)})
    return x.cuda().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
@torch.no_grad()
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


@pytest.mark.parametrize("kind", ["fp8", "mxfp8", "nvfp4", "mxfp4"])
def test_quantised_gated_blocks(kind: str) -> None:
    """Forward and gradients of quantised blocks: near a CPU's, and the same bits again."""
    geometry = attention.GatedAttentionBlockGeometry(128, 2, 1, 128, 16)
    fp4 = {"nvfp4": declarations.Fp4Format.NVFP4, "mxfp4": declarations.Fp4Format.MXFP4}.get(kind)
    spec: Any = declarations.MxQuantSpec(0.001 if fp4 is None else 1.0, 100.0 if fp4 is None else 1.0, o_fp4=fp4)
    if kind == "fp8":
        spec = declarations.QuantSpec(0.02, 0.002, 0.001, 40.0, 30.0, 50.0, 100.0)
    given = QuantisedOperands(geometry, spec, (2, 40))
    dy = normal(2, 40, 128).bfloat16()

    def run(device: str) -> list[torch.Tensor]:
        operands: Any = [convert(x, "torch", device) for x in given.arrays]
        blobs: dict[str, Any] = {n: None if x is None else convert(x, "torch", device) for n, x in given.blobs.items()}
        turned = {n: convert(x, "torch", device) for n, x in given.turned.items()}
        more: Any = {f"sample_{n}": x for n, x in blobs.items()}
        out = torch.empty(2, 40, 128, dtype=torch.bfloat16, device=device)
        made = Fwd(*operands, out, geometry, quant=spec, save_for_backward=True, **more)
        made.compile()
        shapes = {"o": (2, 40, 2, 128), "lse": (2, 2, 40), "rstd_q": (2, 40, 2), "rstd_k": (2, 40, 1)}
        shapes["proj_slab"] = (2, 40, geometry.n_qkvg)
        kinds = {"o": torch.bfloat16, "proj_slab": torch.bfloat16}
        buffers: Any = {n: torch.empty(s, dtype=kinds.get(n, torch.float32), device=device) for n, s in shapes.items()}
        saved = attention.SavedForBackward(h=operands[0], gate=None, **buffers)
        made.execute(*operands, out, None, saved=saved, **blobs)
        leaves = [x.detach().requires_grad_() for x in operands]
        scales: Any = {"scale_dp": torch.full((1,), 64.0, device=device)} if kind == "fp8" else turned
        backward: Any = attention.gated_attention_block_backward
        record = replace(saved, h=leaves[0])
        return [out, *backward(dy.to(device), record, *leaves[1:], geometry, quant=spec, **scales)]

    wanted, first, again = run("cpu"), run("cuda"), run("cuda")
    for got, same, reference in zip(first, again, wanted, strict=True):
        assert torch.equal(got, same)
        # Where a sum lies beside the middle of two codes, another order of it gives the other one.
        assert rel_rms(to_float64(got), to_float64(reference)) < 2.0**-5


def test_32k_tokens_take_no_square_of_memory() -> None:
    """Scores of eight heads of 32,768 tokens are 32 GiB in float32; a tile has 64 MiB."""
    tokens = 1 << 15
    q = torch.randn(1, tokens, 8, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, tokens, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    causal = torch.arange(1, tokens + 1, device="cuda", dtype=torch.int32)[None, None]
    plan = create_mask_plan(causal, q, k, v, build_backward=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = attention.flex_attention(q, k, v, mask_plan=plan, return_lse=True)
    grads = attention.flex_attention_backward(torch.ones_like(o), q, k, v, o, lse, plan)
    assert torch.cuda.max_memory_allocated() - before < 3 << 30
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # Both round P, and O once more, to bfloat16.
    assert rel_rms(to_float64(o), to_float64(wanted.transpose(1, 2))) < 3 * 2.0**-8
    assert all(torch.isfinite(x).all() for x in grads)
