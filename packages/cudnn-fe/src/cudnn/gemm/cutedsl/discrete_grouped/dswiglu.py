"""Its derivative's grouped GEMM, weights behind addresses by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import discrete_grouped_gemm_swiglu_jax_backward as discrete_grouped_gemm_dswiglu_jax_sm100
from cudnn_fe.grouped.classes_scaled import DiscreteGroupedGemmDswigluSm100
from cudnn_fe.grouped.legacy_scaled import discrete_grouped_gemm_dswiglu_wrapper_sm100

__all__ = [
    "DiscreteGroupedGemmDswigluSm100",
    "discrete_grouped_gemm_dswiglu_jax_sm100",
    "discrete_grouped_gemm_dswiglu_wrapper_sm100",
]
