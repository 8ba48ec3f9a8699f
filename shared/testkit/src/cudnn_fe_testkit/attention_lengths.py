"""A call of every attention op at any length, for tests and measurements of what grows with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations
from cudnn_fe_testkit.attention_cases import create_mask_plan

__all__ = ["LENGTHS", "Call", "Size"]

Call = tuple[tuple[Any, ...], dict[str, Any]]
BLOCK, RATIO = 64, 4


@dataclass(frozen=True)
class Size:
    """What a call's operands are made from.

    Attributes:
        tokens: Queries, and keys where none are compressed: a multiple of 128.
        width: Channels of a head.
        listed: Keys of a list, and of a window.
        dtype: Of operands that may be narrow.
    """

    tokens: int
    width: int
    listed: int
    dtype: torch.dtype = torch.float32

    @property
    def blocks(self) -> int:
        """Blocks of ``BLOCK`` tokens."""
        return self.tokens // BLOCK

    @property
    def compressed(self) -> int:
        """Keys that stand for ``RATIO`` tokens each."""
        return self.tokens // RATIO

    def normal(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal numbers."""
        made = torch.Generator().manual_seed(seed + sum(shape))
        return torch.randn(shape, generator=made).to(dtype or self.dtype)

    def float32(self, *shape: int, seed: int = 0) -> torch.Tensor:
        """Those of statistics, which are never narrow."""
        return self.normal(*shape, seed=seed, dtype=torch.float32)

    def lists(self, *lead: int, of: int, length: int) -> torch.Tensor:
        """Lists (*lead, length) of different ids below ``of``: spread evenly, from a random one on."""
        first = torch.randint(0, of, (*lead, 1), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
        return (first + torch.arange(length, dtype=torch.int32) * max(of // length, 1)) % of

    def heads_first(self, heads: int = 1, seed: int = 0) -> torch.Tensor:
        """(1, H, S, D)."""
        return self.normal(1, heads, self.tokens, self.width, seed=seed)

    def packed(self, heads: int = 1, seed: int = 0, rows: int | None = None) -> torch.Tensor:
        """(T, H, D)."""
        return self.normal(rows or self.tokens, heads, self.width, seed=seed)

    def sum_of_keys(self, *shape: int) -> torch.Tensor:
        """Log-sum-exps such that probabilities sum to about 1."""
        return torch.full(shape, 0.5) + torch.tensor(float(self.tokens)).log()


def _ends(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _indexer(z: Size) -> tuple[Any, ...]:
    """Queries of two heads, compressed keys, weights."""
    return (z.packed(2)[None], z.packed(rows=z.compressed)[None], z.normal(1, z.tokens, 2, seed=2))


def _listed_scores(z: Size) -> tuple[Any, ...]:
    q, k, w = _indexer(z)
    return q, k[:, :, 0], w, z.lists(1, z.tokens, of=z.compressed, length=z.listed)


def _listed_indexer(z: Size) -> Call:
    return _listed_scores(z), {}


def _listed_attention(z: Size) -> Call:
    q, k, _, ids = _listed_scores(z)
    return (q, k, z.sum_of_keys(1, z.tokens, 2), ids, 0.1), {}


def _indexer_gradient(z: Size) -> Call:
    q, k, w, ids = _listed_scores(z)
    target = torch.full((1, z.tokens, z.listed), 1 / z.listed)
    return (q, w, k, target, target, ids, z.float32(1)), {}


def _dense_gradient(z: Size) -> Call:
    q, k, w = _indexer(z)
    scores = z.float32(1, z.tokens, z.compressed).abs_()
    lse = z.sum_of_keys(1, z.tokens)
    return (q, w, k[:, :, 0], scores, scores.sum(-1), scores, lse, z.float32(1)), {"ratio": RATIO}


def _rows(z: Size) -> tuple[Any, ...]:
    """Queries of two heads and rows that are keys and values, as sparse attention takes them."""
    return z.packed(2), z.packed(seed=1)[:, 0]


def _row_lists(z: Size) -> torch.Tensor:
    return z.lists(z.tokens, of=z.tokens, length=z.listed)


def _sparse_gradient(z: Size) -> Call:
    statistics = z.sum_of_keys(z.tokens, 2), z.float32(2)
    return (*_rows(z), z.packed(2, 2), z.packed(2, 3), *statistics, _row_lists(z)), {}


def _hca(z: Size) -> Call:
    kv = z.normal(z.tokens + 128 + 4 * (z.tokens // 128 + 1), z.width)
    rest = (z.packed(2, 1), z.packed(2, 2), z.sum_of_keys(z.tokens, 2), z.float32(2))
    return (z.packed(2), kv, *rest), {"cp_rank": 1, "cp_size": 4}


def _linear(rule: str, z: Size, way: str) -> Call:
    """Operands of a rule, by its function's own names in their order."""
    updates = 2 if rule == "gated_delta_product" else 1
    rows, gates = z.tokens * updates, () if rule in ("gated_delta_net", "gated_delta_product") else (z.width,)
    channelwise = rule == "gated_delta_net_v2"
    q, do = z.packed(1), z.packed(1, seed=3)
    k, v = z.packed(1, 1, rows), z.packed(1, 2, rows)
    g = -z.float32(z.tokens, 1, *gates).abs() / 16
    beta = z.float32(rows, 1, *((z.width,) if channelwise else ())).sigmoid()
    w = (z.float32(rows, 1, z.width, seed=3).sigmoid(),) if channelwise else ()
    cu, last = _ends(0, z.tokens // 3, z.tokens), (2,) if updates > 1 else ()
    options = {"use_qk_l2norm_in_kernel": True}
    arguments = {
        "forward": (q, k, v, g, beta, *w, cu, *last),
        "backward": (q, k, v, g, beta, *w, cu, *last, do),
        "summary_forward": (k, v, g, beta, *w, cu, *last),
        "summary_backward": (q, k, g, beta, do, cu, *last),
    }
    return arguments[way], options


def _mamba(z: Size) -> tuple[Any, ...]:
    b, c = (z.normal(1, z.tokens, 1, z.width, seed=seed) for seed in (1, 2))
    return z.packed()[None], z.normal(1, z.tokens, 1), -z.float32(1).abs(), b, c


def _block_lists(z: Size, heads: int) -> torch.Tensor:
    return z.lists(1, heads, z.blocks, of=z.blocks, length=max(z.listed // BLOCK, 1))


def _selection(z: Size) -> Call:
    length = max(z.listed // BLOCK, 1)
    lists, counts = z.lists(z.tokens, 1, of=z.blocks, length=length), torch.full((z.tokens, 1), length).int()
    cu = _ends(0, z.tokens)
    return (z.packed(2), z.packed(1, 1), z.packed(1, 2), lists, counts, cu, cu), {"block_size": BLOCK}


def _compressor(z: Size) -> tuple[Any, ...]:
    wide = (z.normal(z.tokens, 2 * z.width, seed=seed) for seed in range(2))
    return (*wide, z.float32(RATIO, 2 * z.width), _ends(0, z.tokens), _ends(0, z.compressed))


def _flex(z: Size) -> tuple[Any, ...]:
    q, k, v = (z.packed(heads, seed)[None] for seed, heads in enumerate((2, 1, 1)))
    causal = torch.arange(1, z.tokens + 1, dtype=torch.int32)[None, None]
    return q, k, v, create_mask_plan(causal, q, k, v, build_backward=True)


def _flex_gradient(z: Size) -> Call:
    q, k, v, plan = _flex(z)
    return (torch.ones_like(q), q, k, v, q, z.sum_of_keys(1, 2, z.tokens), plan), {}


def _block(z: Size, **more: Any) -> tuple[Any, ...]:
    """Operands and geometry of a causal gated block of two query heads and one key head, of 64 channels each."""
    g = attention.GatedAttentionBlockGeometry(64, 2, 1, 64, 8, **more)
    made = (
        z.normal(1, z.tokens, g.d_model),
        z.normal(g.n_qkvg, g.d_model) / 8,
        z.normal(64),
        z.normal(64, seed=1),
        z.normal(1, z.tokens, 8),
        z.normal(1, z.tokens, 8, seed=1),
        z.normal(g.d_model, 128) / 8,
    )
    return (*made, g)


def _block_gradient(z: Size) -> Call:
    *operands, g = _block(z)
    made = *(x.requires_grad_() for x in operands), g
    saved = attention.SavedForBackward(
        h=made[0],
        gate=None,
        o=z.normal(1, z.tokens, 2, 64),
        lse=z.sum_of_keys(1, 2, z.tokens),
        proj_slab=z.normal(z.tokens, made[-1].n_qkvg),
        rstd_q=z.float32(1, z.tokens, 2).abs(),
        rstd_k=z.float32(1, z.tokens, 1).abs(),
    )
    return (z.normal(1, z.tokens, 64, seed=5), saved, *made[1:]), {}


def _paged_block(z: Size) -> Call:
    *made, g = _block(z, causal_bottom_right=True)
    pages, whole = z.tokens // 16, _ends(z.tokens)
    made = [x[0] if x.ndim == 3 else x for x in made]
    pools = (z.normal(pages, 1, 16, 64), z.normal(pages, 1, 16, 64, seed=1))
    table = torch.arange(pages, dtype=torch.int32)[None]
    options = {"kv_source": "paged", "block_table": table, "kv_lens": whole, "seq_lens": whole, "thd": True}
    return (*made, g, *pools, torch.arange(z.tokens)), options


def _sparse_block(z: Size) -> Call:
    most = max(z.listed // 4, 4)
    qsa: Any = declarations.QsaSpec(4, most, "indexer", True, index_heads=2, index_head_dim=64)
    return _block(z, qsa=qsa), {"w_iq_norm": z.normal(64), "w_ik_norm": z.normal(64, seed=1)}


def _served_sparse_block(z: Size) -> Call:
    """All tokens of a sequence at once, over empty pages."""
    most = max(z.listed // 4, 4)
    qsa: Any = declarations.QsaSpec(4, most, "indexer", True, index_heads=2, index_head_dim=64)
    *made, g = _block(z, qsa=qsa, causal_bottom_right=True)
    pages, zero = z.tokens // 16, torch.zeros(1, 1, dtype=torch.int32)
    pools = (z.normal(pages, 1, 16, 64), z.normal(pages, 1, 16, 64, seed=1))
    options = {
        "kv_source": "paged",
        "block_table": torch.arange(pages, dtype=torch.int32)[None],
        "kv_lens": _ends(z.tokens),
        "w_iq_norm": z.normal(64),
        "w_ik_norm": z.normal(64, seed=1),
        "index_kv_cache": z.normal(pages, 4, 1, 64),
        "index_state_cache": z.normal(1, z.tokens + 3, 1, 64),
        "index_state_block_table": zero,
        "cos_pos": made[4],
        "sin_pos": made[5],
    }
    return (*made, g, *pools, torch.arange(z.tokens)), options


def _softmax_gradient(z: Size) -> tuple[Any, ...]:
    """Q, K, V, O and dO of one head, and the log-sum-exp (1, 1, S)."""
    return (*(z.heads_first(seed=seed) for seed in range(5)), z.sum_of_keys(1, 1, z.tokens))


def _sdpa(z: Size) -> Call:
    *operands, lse = _softmax_gradient(z)
    return (*operands, lse[..., None]), {"is_causal": True, "sink_token": z.float32(1, 1, 1, 1)}


def _block_sparse_gradient(z: Size) -> Call:
    q, k, v, o, do, lse = _softmax_gradient(z)
    return (do, q, k, v, o, lse, _block_lists(z, 1)), {"sparse_block_size": BLOCK}


def _qat(z: Size) -> Call:
    q, k, v, o, do, lse = _softmax_gradient(z)
    return (do, q, k, v, o, lse), {"is_causal": True}


def _hstu(z: Size, count: int) -> Call:
    cu = _ends(0, z.tokens)
    operands = [z.packed(1, seed) for seed in range(count)]
    return (*operands, cu, cu, z.tokens, z.tokens), {"window_size": (-1, 0), "scaling_seqlen": float(z.tokens)}


def _compression(z: Size) -> tuple[Any, ...]:
    q, *of_keys = z.packed(2), *(z.packed(1, seed, z.tokens // 32) for seed in (1, 2))
    return (q, *of_keys, _ends(0, z.tokens), _ends(0, z.tokens // 32))


def _top_blocks(z: Size) -> Call:
    q, k, _, *offsets = _compression(z)
    return (q, k, -1.5 * z.sum_of_keys(z.tokens, 2), *offsets), {"k_value": 16}


_RULES = ("gated_delta_net", "kimi_delta_attention", "gated_delta_net_v2", "gated_delta_product")
_WAYS = ("forward", "backward", "summary_forward", "summary_backward")

LENGTHS: dict[str, Callable[[Size], Call]] = {
    "block_sparse_attention_forward": lambda z: (
        (*(z.heads_first(2, seed) for seed in range(3)), _block_lists(z, 2)),
        {"sparse_block_size": BLOCK},
    ),
    "block_sparse_attention_backward": _block_sparse_gradient,
    "block_sparse_attention_fp8_forward": lambda z: (
        (*(z.heads_first(1, seed).bfloat16() for seed in range(3)), _block_lists(z, 1)),
        {"sparse_block_size": BLOCK},
    ),
    "nsa_compression_attention_forward": lambda z: (_compression(z), {"enable_lse": True}),
    "nsa_selection_attention_forward": _selection,
    "nsa_sliding_window_attention_forward": lambda z: (
        tuple(z.heads_first(2, seed) for seed in range(3)),
        {"left_bound": z.listed},
    ),
    "nsa_topk_reduction_forward": _top_blocks,
    "hstu_attention_forward": lambda z: _hstu(z, 3),
    "hstu_attention_backward": lambda z: _hstu(z, 4),
    "csa_compressor_forward": lambda z: (_compressor(z), {"ratio": RATIO, "total_comp": z.compressed}),
    "csa_compressor_backward": lambda z: ((*_compressor(z), z.normal(z.compressed, z.width)), {"ratio": RATIO}),
    "flex_attention_forward": lambda z: (_flex(z), {}),
    "flex_attention_backward": _flex_gradient,
    "sdpa_backward": _sdpa,
    "nvfp4_attention_qat_backward": _qat,
    "gated_attention_block_forward": lambda z: (_block(z), {"return_lse": True}),
    "gated_attention_block_backward": _block_gradient,
    "gated_attention_block_paged_forward": _paged_block,
    "gated_attention_block_sparse_forward": _sparse_block,
    "gated_attention_block_paged_sparse_forward": _served_sparse_block,
    "dsa_indexer_forward": lambda z: (_indexer(z), {"ratio": RATIO, "return_lse": True}),
    "dsa_indexer_fused_top_k_forward": lambda z: ((*_indexer(z), z.listed), {"ratio": RATIO, "return_lse": True}),
    "dsa_indexer_top_k_forward": lambda z: (
        (z.float32(z.tokens, z.compressed), torch.full((z.tokens,), z.compressed).int(), z.listed),
        {},
    ),
    "dsa_local_to_global_forward": lambda z: ((_row_lists(z), 0, _ends(0, z.tokens), _ends(0, z.tokens)), {}),
    "dsa_compactify_forward": lambda z: ((_row_lists(z),), {}),
    "dsa_sparse_indexer_score_forward": _listed_indexer,
    "dsa_sparse_attn_score_forward": _listed_attention,
    "dsa_dense_indexer_score_forward": lambda z: (_indexer(z), {"ratio": RATIO}),
    "dsa_dense_attn_score_forward": lambda z: (
        (*_indexer(z)[:2], z.sum_of_keys(1, z.tokens, 2), 0.1),
        {"ratio": RATIO},
    ),
    "dsa_indexer_backward": _indexer_gradient,
    "dsa_dense_indexer_backward": _dense_gradient,
    "dsa_sparse_attention_forward": lambda z: ((*_rows(z), _row_lists(z)), {"attn_sink": z.float32(2)}),
    "dsa_sparse_attention_backward": _sparse_gradient,
    "aligned_hca_backward": _hca,
    **{
        f"{rule}_{way}": lambda z, rule=rule, way=way: _linear(rule, z, way)  # type: ignore[misc]
        for rule in _RULES
        for way in _WAYS
    },
    "mamba2_forward": lambda z: (_mamba(z), {"return_final_state": True}),
    "mamba2_backward": lambda z: ((z.packed(seed=4)[None], *_mamba(z)), {}),
}
