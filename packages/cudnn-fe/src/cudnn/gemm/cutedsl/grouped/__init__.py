"""The grouped GEMMs by their module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import PreparedGroupedGemm, WGradInputOrder, prepare_grouped_gemm
from cudnn_fe.grouped import get_grouped_gemm_wgrad_workspace_size as get_grouped_gemm_wgrad_workspace_size_sm100
from cudnn_fe.grouped import grouped_gemm_glu_jax_backward as grouped_gemm_dglu_jax_sm100
from cudnn_fe.grouped import grouped_gemm_glu_jax_forward as grouped_gemm_glu_jax_sm100
from cudnn_fe.grouped import grouped_gemm_jax_forward as grouped_gemm_jax_sm100
from cudnn_fe.grouped import grouped_gemm_wgrad_jax_forward as grouped_gemm_wgrad_jax_sm100
from cudnn_fe.grouped.classes import (
    GroupedGemmDgluSm100,
    GroupedGemmGluSm100,
    GroupedGemmSm100,
    GroupedGemmWgradSm100,
)
from cudnn_fe.grouped.legacy import (
    grouped_gemm_dglu_wrapper_sm100,
    grouped_gemm_glu_wrapper_sm100,
    grouped_gemm_wgrad_wrapper_sm100,
    grouped_gemm_wrapper_sm100,
)

__all__ = [
    "GroupedGemmDgluSm100",
    "GroupedGemmGluSm100",
    "GroupedGemmSm100",
    "GroupedGemmWgradSm100",
    "PreparedGroupedGemm",
    "WGradInputOrder",
    "get_grouped_gemm_wgrad_workspace_size_sm100",
    "grouped_gemm_dglu_jax_sm100",
    "grouped_gemm_dglu_wrapper_sm100",
    "grouped_gemm_glu_jax_sm100",
    "grouped_gemm_glu_wrapper_sm100",
    "grouped_gemm_jax_sm100",
    "grouped_gemm_wgrad_jax_sm100",
    "grouped_gemm_wgrad_wrapper_sm100",
    "grouped_gemm_wrapper_sm100",
    "prepare_grouped_gemm",
]
