"""The block-scaled grouped GEMM with squared ReLU's derivative by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_srelu_jax_backward as grouped_gemm_dsrelu_jax_sm100
from cudnn_fe.grouped.classes_scaled import GroupedGemmDsreluSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_dsrelu_wrapper_sm100

__all__ = [
    "GroupedGemmDsreluSm100",
    "grouped_gemm_dsrelu_jax_sm100",
    "grouped_gemm_dsrelu_wrapper_sm100",
]
