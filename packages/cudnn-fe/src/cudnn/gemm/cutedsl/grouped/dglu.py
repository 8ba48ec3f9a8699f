"""The grouped GEMM with a gated activation's derivative by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_glu_jax_backward as grouped_gemm_dglu_jax_sm100
from cudnn_fe.grouped.classes import GroupedGemmDgluSm100
from cudnn_fe.grouped.legacy import grouped_gemm_dglu_wrapper_sm100

__all__ = [
    "GroupedGemmDgluSm100",
    "grouped_gemm_dglu_jax_sm100",
    "grouped_gemm_dglu_wrapper_sm100",
]
