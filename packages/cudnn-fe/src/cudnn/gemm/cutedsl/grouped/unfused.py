"""The unfused grouped GEMM by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_jax_forward as grouped_gemm_jax_sm100
from cudnn_fe.grouped.classes import GroupedGemmSm100
from cudnn_fe.grouped.legacy import grouped_gemm_wrapper_sm100

__all__ = [
    "GroupedGemmSm100",
    "grouped_gemm_jax_sm100",
    "grouped_gemm_wrapper_sm100",
]
