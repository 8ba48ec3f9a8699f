"""The grouped weight gradient by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import WGradInputOrder
from cudnn_fe.grouped import get_grouped_gemm_wgrad_workspace_size as get_grouped_gemm_wgrad_workspace_size_sm100
from cudnn_fe.grouped import grouped_gemm_wgrad_jax_forward as grouped_gemm_wgrad_jax_sm100
from cudnn_fe.grouped.classes import GroupedGemmWgradSm100
from cudnn_fe.grouped.legacy import grouped_gemm_wgrad_wrapper_sm100

__all__ = [
    "GroupedGemmWgradSm100",
    "WGradInputOrder",
    "get_grouped_gemm_wgrad_workspace_size_sm100",
    "grouped_gemm_wgrad_jax_sm100",
    "grouped_gemm_wgrad_wrapper_sm100",
]
