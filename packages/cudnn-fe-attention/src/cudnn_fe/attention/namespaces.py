"""The namespace objects of ``cudnn``: tables of names, resolved when asked for."""

from __future__ import annotations

from cudnn_fe.core.namespace import Namespace

__all__ = ["BSA", "CSA", "DSA", "NSA"]

_BSA = "cudnn_fe.attention.block_sparse"
_CSA = "cudnn_fe.attention.csa_compressor.legacy"
_DSA = "cudnn_fe.attention.dsa"
_HCA = "cudnn_fe.attention.hca.legacy"
_NSA = "cudnn_fe.attention.nsa_legacy"

BSA = Namespace(
    "BSA",
    {
        "block_sparse_attention_forward": f"{_BSA}:block_sparse_attention_forward",
        "block_sparse_attention_fp8_forward": f"{_BSA}_fp8:block_sparse_attention_fp8_forward",
        "block_sparse_attention_backward": f"{_BSA}:block_sparse_attention_backward",
    },
)

NSA = Namespace(
    "NSA",
    {
        name: f"{_NSA}:{name}"
        for name in (
            "SelectionAttention",
            "selection_attention_wrapper",
            "SlidingWindowAttention",
            "sliding_window_attention_wrapper",
            "CompressionAttention",
            "compression_attention_wrapper",
            "TopKReduction",
            "topk_reduction_wrapper",
        )
    },
)

CSA = Namespace(
    "CSA",
    {
        name: f"{_CSA}:{name}"
        for name in (
            "CSACompressorForward",
            "CSACompressorBackward",
            "csa_compressor_forward_wrapper",
            "csa_compressor_backward_wrapper",
        )
    },
)

_DSA_MEMBERS = {
    "training": ("sparse_attention", "sparse_attention_score_recompute"),
    "indexer.candidates": ("compress_topk_cand_buffer_size", "compress_topk_cand_buffer_size_thd"),
    "legacy": (
        "sparse_attention_forward_wrapper",
        "SparseAttentionBackward",
        "sparse_attention_backward_wrapper",
        "indexer_forward_wrapper",
        "indexer_forward_top_k_wrapper",
        "IndexerTopK",
        "indexer_top_k_wrapper",
        "local_to_global_wrapper",
        "compactify_wrapper",
        "SparseIndexerScoreRecompute",
        "sparse_indexer_score_recompute_wrapper",
        "SparseAttnScoreRecompute",
        "sparse_attn_score_recompute_wrapper",
        "dense_indexer_score_recompute_wrapper",
        "dense_attn_score_recompute_wrapper",
    ),
    "legacy_classes": (
        "SparseAttentionForward",
        "IndexerForward",
        "DenseIndexerScoreRecompute",
        "DenseAttnScoreRecompute",
    ),
    "indexer_backward.legacy": (
        "IndexerBackward",
        "indexer_backward_wrapper",
        "DenseIndexerBackward",
        "dense_indexer_backward_wrapper",
    ),
}

DSA = Namespace(
    "DSA",
    {
        **{name: f"{_DSA}.{module}:{name}" for module, names in _DSA_MEMBERS.items() for name in names},
        "AlignedHCABackward": f"{_HCA}:AlignedHCABackward",
        "aligned_hca_backward_wrapper": f"{_HCA}:aligned_hca_backward_wrapper",
    },
)
