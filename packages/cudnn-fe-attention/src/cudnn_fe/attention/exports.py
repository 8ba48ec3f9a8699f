"""What this family announces to ``cudnn``: public names, legacy names, namespaces, and its ops."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_BSA = "cudnn_fe.attention.block_sparse"
_FLEX = "cudnn_fe.attention.flex"
_HSTU = "cudnn_fe.attention.hstu"
_NSA = "cudnn_fe.attention.nsa"
_CSA = "cudnn_fe.attention.csa_compressor"
_SDPA = "cudnn_fe.attention.sdpa"
_QAT = "cudnn_fe.attention.nvfp4_qat"
_GATED = "cudnn_fe.attention.gated_block"
_SERVED = f"{_GATED}.sparse_paged"
_NAMESPACES = "cudnn_fe.attention.namespaces"
_DSA = "cudnn_fe.attention.dsa"
_HCA = "cudnn_fe.attention.hca"
_LINEAR = "cudnn_fe.attention.linear"

_RULES = {
    "gated_delta_net": "GDN",
    "kimi_delta_attention": "KDA",
    "gated_delta_net_v2": "GDN2",
    "gated_delta_product": "PRODUCT",
}

FAMILY = Family(
    name="attention",
    package="cudnn-fe-attention",
    op_targets=(
        f"{_BSA}.op:FORWARD",
        f"{_BSA}.op:BACKWARD",
        f"{_BSA}_fp8.op:FORWARD",
        f"{_NSA}_compression.op:FORWARD",
        f"{_NSA}_selection.op:FORWARD",
        f"{_NSA}_sliding_window.op:FORWARD",
        f"{_NSA}_topk.op:FORWARD",
        f"{_HSTU}.op:FORWARD",
        f"{_HSTU}.op:BACKWARD",
        f"{_CSA}.op:FORWARD",
        f"{_CSA}.op:BACKWARD",
        f"{_FLEX}.op:FORWARD",
        f"{_FLEX}.op:BACKWARD",
        f"{_SDPA}.op:BACKWARD",
        f"{_QAT}.op:BACKWARD",
        f"{_GATED}.op:FORWARD",
        f"{_GATED}.op_backward:BACKWARD",
        f"{_GATED}.paged_op:PAGED",
        f"{_GATED}.sparse_op:SPARSE",
        f"{_GATED}.sparse_paged_op:SPARSE_PAGED",
        f"{_DSA}.indexer.op:FORWARD",
        f"{_DSA}.indexer.op:TOP_K",
        f"{_DSA}.top_k.op:FORWARD",
        f"{_DSA}.indices.op:LOCAL_TO_GLOBAL",
        f"{_DSA}.indices.op:COMPACTIFY",
        f"{_DSA}.sparse_scores.op:INDEXER",
        f"{_DSA}.sparse_scores.op:ATTENTION",
        f"{_DSA}.dense_scores.op:INDEXER",
        f"{_DSA}.dense_scores.op:ATTENTION",
        f"{_DSA}.indexer_backward.op:SPARSE",
        f"{_DSA}.indexer_backward.op:DENSE",
        f"{_DSA}.sparse_attention.op:FORWARD",
        f"{_DSA}.sparse_attention.op:BACKWARD",
        f"{_HCA}.op:BACKWARD",
        f"{_LINEAR}.op:GDN_FORWARD",
        f"{_LINEAR}.op:GDN_BACKWARD",
        f"{_LINEAR}.op:KDA_FORWARD",
        f"{_LINEAR}.op:KDA_BACKWARD",
        f"{_LINEAR}.op:GDN2_FORWARD",
        f"{_LINEAR}.op:GDN2_BACKWARD",
        f"{_LINEAR}.op:PRODUCT_FORWARD",
        f"{_LINEAR}.op:PRODUCT_BACKWARD",
        *(f"{_LINEAR}.summary_op:{rule}_{way}" for rule in _RULES.values() for way in ("FORWARD", "BACKWARD")),
        "cudnn_fe.attention.mamba2.op:FORWARD",
        "cudnn_fe.attention.mamba2.op:BACKWARD",
    ),
    exports={
        "BSA": f"{_NAMESPACES}:BSA",
        "CSA": f"{_NAMESPACES}:CSA",
        "CSACompressorForward": f"{_CSA}.legacy:CSACompressorForward",
        "CSACompressorBackward": f"{_CSA}.legacy:CSACompressorBackward",
        "csa_compressor_forward": f"{_CSA}:csa_compressor_forward",
        "csa_compressor_backward": f"{_CSA}:csa_compressor_backward",
        "csa_compressor_forward_wrapper": f"{_CSA}.legacy:csa_compressor_forward_wrapper",
        "csa_compressor_backward_wrapper": f"{_CSA}.legacy:csa_compressor_backward_wrapper",
        "FlexAttentionFwd": f"{_FLEX}.legacy:FlexAttentionFwd",
        "FlexAttentionBwd": f"{_FLEX}.legacy:FlexAttentionBwd",
        "create_mask_plan": f"{_FLEX}:create_mask_plan",
        "flex_attention_forward": f"{_FLEX}:flex_attention_forward",
        "flex_attention_backward": f"{_FLEX}:flex_attention_backward",
        "flex_attn_func": f"{_FLEX}:flex_attn_func",
        "DSA": f"{_NAMESPACES}:DSA",
        **{
            f"dsa_{name}": f"{_DSA}:dsa_{name}"
            for name in (
                "compactify_forward",
                "dense_attn_score_forward",
                "dense_indexer_backward",
                "dense_indexer_score_forward",
                "indexer_backward",
                "indexer_forward",
                "indexer_fused_top_k_forward",
                "indexer_top_k_forward",
                "local_to_global_forward",
                "sparse_attention_backward",
                "sparse_attention_forward",
                "sparse_attn_score_forward",
                "sparse_indexer_score_forward",
            )
        },
        "gated_delta_net_forward": f"{_LINEAR}:gated_delta_net_forward",
        "gated_delta_net_backward": f"{_LINEAR}:gated_delta_net_backward",
        "kimi_delta_attention_forward": f"{_LINEAR}:kimi_delta_attention_forward",
        "kimi_delta_attention_backward": f"{_LINEAR}:kimi_delta_attention_backward",
        "gated_delta_net_v2_forward": f"{_LINEAR}.erasing:gated_delta_net_v2_forward",
        "gated_delta_net_v2_backward": f"{_LINEAR}.erasing:gated_delta_net_v2_backward",
        "gated_delta_product_forward": f"{_LINEAR}.product:gated_delta_product_forward",
        "gated_delta_product_backward": f"{_LINEAR}.product:gated_delta_product_backward",
        **{f"{name}_summary_forward": f"{_LINEAR}.summaries:{name}_summary_forward" for name in _RULES},
        **{f"{name}_summary_backward": f"{_LINEAR}.summaries_backward:{name}_summary_backward" for name in _RULES},
        "mamba2_forward": "cudnn_fe.attention.mamba2:mamba2_forward",
        "mamba2_backward": "cudnn_fe.attention.mamba2:mamba2_backward",
        "jax.kimi_delta_attention": f"{_LINEAR}.jax:kimi_delta_attention",
        "ops.kimi_delta_attention_forward_jax": f"{_LINEAR}.jax:kimi_delta_attention_forward_jax",
        "ops.kimi_delta_attention_backward_jax": f"{_LINEAR}.jax:kimi_delta_attention_backward_jax",
        "AlignedHCABackward": f"{_HCA}.legacy:AlignedHCABackward",
        "aligned_hca_backward": f"{_HCA}:aligned_hca_backward",
        "aligned_hca_backward_wrapper": f"{_HCA}.legacy:aligned_hca_backward_wrapper",
        "NSA": f"{_NAMESPACES}:NSA",
        "Nvfp4AttentionQatBackward": f"{_QAT}.legacy:Nvfp4AttentionQatBackward",
        "nvfp4_attention_qat_backward": f"{_QAT}:nvfp4_attention_qat_backward",
        "GatedAttentionBlockFwd": f"{_GATED}.legacy_forward:GatedAttentionBlockFwd",
        "GatedAttentionBlockBwd": f"{_GATED}.legacy_backward:GatedAttentionBlockBwd",
        "gated_attention_block_forward": f"{_GATED}:gated_attention_block_forward",
        "gated_attention_block_backward": f"{_GATED}:gated_attention_block_backward",
        "gated_attention_block_paged_forward": f"{_GATED}.paged:gated_attention_block_paged_forward",
        "gated_attention_block_paged_sparse_forward": f"{_SERVED}:gated_attention_block_paged_sparse_forward",
        "gated_attention_block_sparse_forward": f"{_GATED}.sparse:gated_attention_block_sparse_forward",
        "CompactGqaBackward": f"{_SDPA}.compact_gqa:CompactGqaBackward",
        "compact_gqa_backward": f"{_SDPA}.compact_gqa:compact_gqa_backward",
        "sdpa_backward": f"{_SDPA}:sdpa_backward",
        "hstu_attention_forward": f"{_HSTU}:hstu_attention_forward",
        "hstu_attention_backward": f"{_HSTU}:hstu_attention_backward",
        "nsa_compression_attention_forward": f"{_NSA}_compression:nsa_compression_attention_forward",
        "nsa_selection_attention_forward": f"{_NSA}_selection:nsa_selection_attention_forward",
        "nsa_sliding_window_attention_forward": f"{_NSA}_sliding_window:nsa_sliding_window_attention_forward",
        "nsa_topk_reduction_forward": f"{_NSA}_topk:nsa_topk_reduction_forward",
        "block_sparse_attention_forward": f"{_BSA}:block_sparse_attention_forward",
        "block_sparse_attention_backward": f"{_BSA}:block_sparse_attention_backward",
        "block_sparse_attention_fp8_forward": f"{_BSA}_fp8:block_sparse_attention_fp8_forward",
        "block_sparse_attention_jax": f"{_BSA}:block_sparse_attention_jax",
        "block_sparse_attention_jax_forward": f"{_BSA}:block_sparse_attention_jax_forward",
        "block_sparse_attention_jax_backward": f"{_BSA}:block_sparse_attention_jax_backward",
        "jax.block_sparse_attention": f"{_BSA}:block_sparse_attention_jax",
        "ops.block_sparse_attention_forward": f"{_BSA}:block_sparse_attention_forward",
        "ops.block_sparse_attention_backward": f"{_BSA}:block_sparse_attention_backward",
        "ops.block_sparse_attention_fp8_forward": f"{_BSA}_fp8:block_sparse_attention_fp8_forward",
        "ops.block_sparse_attention_forward_jax": f"{_BSA}:block_sparse_attention_jax_forward",
        "ops.block_sparse_attention_backward_jax": f"{_BSA}:block_sparse_attention_jax_backward",
    },
)
