"""The grouped GEMM with a gated activation by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_glu_jax_forward as grouped_gemm_glu_jax_sm100
from cudnn_fe.grouped.classes import GroupedGemmGluSm100
from cudnn_fe.grouped.legacy import grouped_gemm_glu_wrapper_sm100

__all__ = [
    "GroupedGemmGluSm100",
    "grouped_gemm_glu_jax_sm100",
    "grouped_gemm_glu_wrapper_sm100",
]
