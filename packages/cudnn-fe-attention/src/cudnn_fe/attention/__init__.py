"""Attention for torch, JAX and NumPy: masked, sparse, windowed, gated, quantised, and of recommenders."""

from cudnn_fe.attention._version import __version__
from cudnn_fe.attention.block_sparse import (
    block_sparse_attention_backward,
    block_sparse_attention_forward,
    block_sparse_attention_jax,
    block_sparse_attention_jax_backward,
    block_sparse_attention_jax_forward,
)
from cudnn_fe.attention.block_sparse_fp8 import block_sparse_attention_fp8_forward
from cudnn_fe.attention.csa_compressor import csa_compressor_backward, csa_compressor_forward
from cudnn_fe.attention.dsa import (
    dsa_compactify_forward,
    dsa_dense_attn_score_forward,
    dsa_dense_indexer_backward,
    dsa_dense_indexer_score_forward,
    dsa_indexer_backward,
    dsa_indexer_forward,
    dsa_indexer_fused_top_k_forward,
    dsa_indexer_top_k_forward,
    dsa_local_to_global_forward,
    dsa_sparse_attention_backward,
    dsa_sparse_attention_forward,
    dsa_sparse_attn_score_forward,
    dsa_sparse_indexer_score_forward,
)
from cudnn_fe.attention.flex import (
    MaskPlan,
    create_mask_plan,
    flex_attention,
    flex_attention_backward,
    flex_attention_forward,
    flex_attn_func,
)
from cudnn_fe.attention.gated_block import gated_attention_block_backward, gated_attention_block_forward
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.paged import gated_attention_block_paged_forward
from cudnn_fe.attention.gated_block.record import SavedForBackward
from cudnn_fe.attention.gated_block.sparse import gated_attention_block_sparse_forward
from cudnn_fe.attention.gated_block.sparse_paged import gated_attention_block_paged_sparse_forward
from cudnn_fe.attention.gated_block.weights import build_fused_qkvg_weight, qkvg_from_hf, qkvg_from_vllm
from cudnn_fe.attention.hca import aligned_hca_backward
from cudnn_fe.attention.hstu import hstu_attention_backward, hstu_attention_forward
from cudnn_fe.attention.linear import (
    gated_delta_net_backward,
    gated_delta_net_forward,
    kimi_delta_attention_backward,
    kimi_delta_attention_forward,
)
from cudnn_fe.attention.linear.erasing import gated_delta_net_v2_backward, gated_delta_net_v2_forward
from cudnn_fe.attention.linear.product import gated_delta_product_backward, gated_delta_product_forward
from cudnn_fe.attention.linear.summaries import (
    gated_delta_net_summary_forward,
    gated_delta_net_v2_summary_forward,
    gated_delta_product_summary_forward,
    kimi_delta_attention_summary_forward,
)
from cudnn_fe.attention.linear.summaries_backward import (
    gated_delta_net_summary_backward,
    gated_delta_net_v2_summary_backward,
    gated_delta_product_summary_backward,
    kimi_delta_attention_summary_backward,
)
from cudnn_fe.attention.mamba2 import mamba2_backward, mamba2_forward
from cudnn_fe.attention.nsa_compression import nsa_compression_attention_forward
from cudnn_fe.attention.nsa_selection import nsa_selection_attention_forward
from cudnn_fe.attention.nsa_sliding_window import nsa_sliding_window_attention_forward
from cudnn_fe.attention.nsa_topk import nsa_topk_reduction_forward
from cudnn_fe.attention.nvfp4_qat import nvfp4_attention_qat_backward
from cudnn_fe.attention.sdpa import sdpa_backward
from cudnn_fe.attention.sdpa.compact_gqa import CompactGqaBackward, compact_gqa_backward

__all__ = [
    "CompactGqaBackward",
    "GatedAttentionBlockGeometry",
    "MaskPlan",
    "SavedForBackward",
    "__version__",
    "aligned_hca_backward",
    "block_sparse_attention_backward",
    "block_sparse_attention_forward",
    "block_sparse_attention_fp8_forward",
    "block_sparse_attention_jax",
    "block_sparse_attention_jax_backward",
    "block_sparse_attention_jax_forward",
    "build_fused_qkvg_weight",
    "compact_gqa_backward",
    "create_mask_plan",
    "csa_compressor_backward",
    "csa_compressor_forward",
    "dsa_compactify_forward",
    "dsa_dense_attn_score_forward",
    "dsa_dense_indexer_backward",
    "dsa_dense_indexer_score_forward",
    "dsa_indexer_backward",
    "dsa_indexer_forward",
    "dsa_indexer_fused_top_k_forward",
    "dsa_indexer_top_k_forward",
    "dsa_local_to_global_forward",
    "dsa_sparse_attention_backward",
    "dsa_sparse_attention_forward",
    "dsa_sparse_attn_score_forward",
    "dsa_sparse_indexer_score_forward",
    "flex_attention",
    "flex_attention_backward",
    "flex_attention_forward",
    "flex_attn_func",
    "gated_attention_block_backward",
    "gated_attention_block_forward",
    "gated_attention_block_paged_forward",
    "gated_attention_block_paged_sparse_forward",
    "gated_attention_block_sparse_forward",
    "gated_delta_net_backward",
    "gated_delta_net_forward",
    "gated_delta_net_summary_backward",
    "gated_delta_net_summary_forward",
    "gated_delta_net_v2_backward",
    "gated_delta_net_v2_forward",
    "gated_delta_net_v2_summary_backward",
    "gated_delta_net_v2_summary_forward",
    "gated_delta_product_backward",
    "gated_delta_product_forward",
    "gated_delta_product_summary_backward",
    "gated_delta_product_summary_forward",
    "hstu_attention_backward",
    "hstu_attention_forward",
    "kimi_delta_attention_backward",
    "kimi_delta_attention_forward",
    "kimi_delta_attention_summary_backward",
    "kimi_delta_attention_summary_forward",
    "mamba2_backward",
    "mamba2_forward",
    "nsa_compression_attention_forward",
    "nsa_selection_attention_forward",
    "nsa_sliding_window_attention_forward",
    "nsa_topk_reduction_forward",
    "nvfp4_attention_qat_backward",
    "qkvg_from_hf",
    "qkvg_from_vllm",
    "sdpa_backward",
]
