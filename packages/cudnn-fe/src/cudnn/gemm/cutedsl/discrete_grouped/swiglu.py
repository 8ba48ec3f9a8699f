"""The block-scaled grouped GEMM with SwiGLU, weights behind addresses by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import discrete_grouped_gemm_swiglu_jax_forward as discrete_grouped_gemm_swiglu_jax_sm100
from cudnn_fe.grouped.classes_scaled import DiscreteGroupedGemmSwigluSm100
from cudnn_fe.grouped.legacy_scaled import discrete_grouped_gemm_swiglu_wrapper_sm100

__all__ = [
    "DiscreteGroupedGemmSwigluSm100",
    "discrete_grouped_gemm_swiglu_jax_sm100",
    "discrete_grouped_gemm_swiglu_wrapper_sm100",
]
