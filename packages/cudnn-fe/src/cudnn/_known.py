"""Names of every family, installed or not, so that a missing one is told from a misspelt one."""

from __future__ import annotations

__all__ = ["PACKAGE_OF"]

_NAMES = {
    "cudnn-fe-gemm": (
        "GemmAmaxSm100 GemmDsreluSm100 GemmProjRopeMxfp8Bf16InSm100 GemmProjRopeMxfp8Mxfp8InSm100 "
        "GemmSreluSm100 GemmSwigluSm100 MhcProjectionBackward gemm_amax_forward gemm_amax_jax_sm100 "
        "gemm_amax_wrapper_sm100 gemm_dsrelu_jax_sm100 gemm_dsrelu_wrapper_sm100 "
        "gemm_proj_rope_mxfp8_jax_sm100 gemm_proj_rope_mxfp8_wrapper_sm100 gemm_srelu_backward "
        "gemm_srelu_forward gemm_srelu_jax_sm100 gemm_srelu_wrapper_sm100 gemm_swiglu_backward "
        "gemm_swiglu_forward gemm_swiglu_jax_backward gemm_swiglu_jax_forward gemm_swiglu_jax_sm100 "
        "gemm_swiglu_scaled_forward gemm_swiglu_wrapper_sm100 "
        "mhc_projection_backward gemm.mhc_projection_backward gemm.MhcProjectionBackward "
        "gemm_proj_rope_mxfp8_forward swiglu_mlp_forward swiglu_mlp_backward gemm.swiglu_mlp gemm.ops.swiglu_mlp"
    ),
    "cudnn-fe-grouped": (
        "DiscreteGroupedGemmDswigluSm100 DiscreteGroupedGemmSwigluSm100 GroupedGemmDgluSm100 "
        "GroupedGemmDsreluSm100 GroupedGemmDswigluSm100 GroupedGemmGluHadamardQuantSm100 "
        "GroupedGemmGluHadamardSm100 GroupedGemmGluSm100 GroupedGemmQuantSm100 GroupedGemmSm100 "
        "GroupedGemmSreluSm100 GroupedGemmSwigluSm100 GroupedGemmWgradSm100 discrete_grouped_gemm "
        "discrete_grouped_gemm_dswiglu_jax_sm100 discrete_grouped_gemm_dswiglu_wrapper_sm100 "
        "discrete_grouped_gemm_swiglu_jax_sm100 discrete_grouped_gemm_swiglu_wrapper_sm100 "
        "get_grouped_gemm_wgrad_workspace_size_sm100 grouped_gemm grouped_gemm_dglu_jax_sm100 "
        "grouped_gemm_dglu_wrapper_sm100 grouped_gemm_dsrelu_jax_sm100 grouped_gemm_dsrelu_wrapper_sm100 "
        "grouped_gemm_dswiglu_wrapper_sm100 grouped_gemm_forward grouped_gemm_glu_backward "
        "grouped_gemm_glu_forward grouped_gemm_glu_hadamard_jax_forward "
        "grouped_gemm_glu_hadamard_quant_jax_forward grouped_gemm_glu_hadamard_quant_wrapper_sm100 "
        "grouped_gemm_glu_hadamard_wrapper_sm100 grouped_gemm_glu_jax_sm100 grouped_gemm_glu_wrapper_sm100 "
        "grouped_gemm_jax_sm100 grouped_gemm_quant_jax_forward grouped_gemm_quant_wrapper_sm100 "
        "grouped_gemm_srelu_jax_forward grouped_gemm_srelu_wrapper_sm100 grouped_gemm_swiglu_forward "
        "grouped_gemm_swiglu_wrapper_sm100 grouped_gemm_wgrad_jax_sm100 grouped_gemm_wgrad_wrapper_sm100 "
        "grouped_gemm_wrapper_sm100"
    ),
    "cudnn-fe-attention": (
        "AlignedHCABackward BSA CSA CSACompressorBackward CSACompressorForward CompactGqaBackward DSA "
        "FlexAttentionBwd FlexAttentionFwd GatedAttentionBlockBwd GatedAttentionBlockFwd NSA "
        "Nvfp4AttentionQatBackward aligned_hca_backward aligned_hca_backward_wrapper block_sparse_attention_backward "
        "block_sparse_attention_forward block_sparse_attention_fp8_forward block_sparse_attention_jax "
        "block_sparse_attention_jax_backward block_sparse_attention_jax_forward compact_gqa_backward "
        "create_mask_plan csa_compressor_backward csa_compressor_backward_wrapper csa_compressor_forward "
        "csa_compressor_forward_wrapper dsa_compactify_forward dsa_dense_attn_score_forward "
        "dsa_dense_indexer_backward dsa_dense_indexer_score_forward dsa_indexer_backward dsa_indexer_forward "
        "dsa_indexer_fused_top_k_forward dsa_indexer_top_k_forward dsa_local_to_global_forward "
        "dsa_sparse_attention_backward dsa_sparse_attention_forward dsa_sparse_attn_score_forward "
        "dsa_sparse_indexer_score_forward fla gated_delta_net_backward gated_delta_net_forward "
        "jax.kimi_delta_attention kimi_delta_attention_backward kimi_delta_attention_forward "
        "ops.kimi_delta_attention_backward_jax ops.kimi_delta_attention_forward_jax flex_attention_backward "
        "flex_attention_forward flex_attn_func gated_attention_block "
        "gated_attention_block_backward gated_attention_block_forward gated_attention_block_paged_forward "
        "gated_attention_block_sparse_forward "
        "mamba2_forward mamba2_backward "
        "gated_delta_net_summary_forward gated_delta_net_summary_backward "
        "kimi_delta_attention_summary_forward kimi_delta_attention_summary_backward "
        "gated_delta_net_v2_summary_forward gated_delta_net_v2_summary_backward "
        "gated_delta_product_summary_forward gated_delta_product_summary_backward "
        "gated_delta_net_v2_forward gated_delta_net_v2_backward gated_delta_product_forward "
        "gated_delta_product_backward hstu_attention_backward hstu_attention_forward jax.block_sparse_attention "
        "nsa_compression_attention_forward "
        "nsa_selection_attention_forward "
        "nsa_sliding_window_attention_forward nsa_topk_reduction_forward nvfp4_attention_qat_backward "
        "ops.block_sparse_attention_backward ops.block_sparse_attention_backward_jax "
        "ops.block_sparse_attention_forward ops.block_sparse_attention_forward_jax "
        "ops.block_sparse_attention_fp8_forward sdpa_backward sdpa_torch"
    ),
    "cudnn-fe-norm-rope": (
        "EngramGateSavedBackward EngramGateSavedForward RmsNormRhtAmaxSm100 RopeQDQInplace TailRoPEForward "
        "VisionRoPEBackward engram_gate_saved_backward engram_gate_saved_forward hstu_lmsd_backward "
        "hstu_lmsd_forward rmsnorm_rht_amax_forward rmsnorm_rht_amax_wrapper_sm100 rope_qdq_inplace tail_rope "
        "vision_rope_backward_wrapper"
    ),
    "cudnn-fe-conv": (
        "CausalConv3dWithCacheSm100 Conv3dBiasResidualPadSm100 Conv3dRawSm100 Conv3dRmsNormSiluPadSm100 "
        "Conv3dRmsNormSiluSm100 RmsNormSiluPadSm100 causal_conv3d_with_cache_wrapper_sm100 "
        "conv3d_bias_residual_pad_wrapper_sm100 conv3d_raw_wrapper_sm100 "
        "conv3d_rmsnorm_silu_pad_wrapper_sm100 conv3d_rmsnorm_silu_wrapper_sm100 "
        "ops.causal_conv1d ops.causal_conv1d_update pack_causal_conv3d_weight_sm100 pack_conv3d_weight_sm100 "
        "rmsnorm_silu_pad_wrapper_sm100"
    ),
}

PACKAGE_OF = {name: package for package, names in _NAMES.items() for name in names.split()}
