"""The grouped GEMMs with weights behind addresses by their module path in cudnn-frontend 1.32."""

from cudnn.gemm.cutedsl.discrete_grouped.dswiglu import (
    DiscreteGroupedGemmDswigluSm100,
    discrete_grouped_gemm_dswiglu_jax_sm100,
    discrete_grouped_gemm_dswiglu_wrapper_sm100,
)
from cudnn.gemm.cutedsl.discrete_grouped.swiglu import (
    DiscreteGroupedGemmSwigluSm100,
    discrete_grouped_gemm_swiglu_jax_sm100,
    discrete_grouped_gemm_swiglu_wrapper_sm100,
)

__all__ = [
    "DiscreteGroupedGemmDswigluSm100",
    "DiscreteGroupedGemmSwigluSm100",
    "discrete_grouped_gemm_dswiglu_jax_sm100",
    "discrete_grouped_gemm_dswiglu_wrapper_sm100",
    "discrete_grouped_gemm_swiglu_jax_sm100",
    "discrete_grouped_gemm_swiglu_wrapper_sm100",
]
