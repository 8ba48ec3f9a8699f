"""The grouped GEMMs by their module path in cudnn-frontend 1.32."""

from cudnn.gemm.cutedsl.grouped.dglu import (
    GroupedGemmDgluSm100,
    grouped_gemm_dglu_jax_sm100,
    grouped_gemm_dglu_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.dsrelu import (
    GroupedGemmDsreluSm100,
    grouped_gemm_dsrelu_jax_sm100,
    grouped_gemm_dsrelu_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.dswiglu import GroupedGemmDswigluSm100, grouped_gemm_dswiglu_wrapper_sm100
from cudnn.gemm.cutedsl.grouped.glu import (
    GroupedGemmGluSm100,
    grouped_gemm_glu_jax_sm100,
    grouped_gemm_glu_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.glu_hadamard import (
    GroupedGemmGluHadamardSm100,
    grouped_gemm_glu_hadamard_jax_forward,
    grouped_gemm_glu_hadamard_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.glu_hadamard_quant import (
    GroupedGemmGluHadamardQuantSm100,
    grouped_gemm_glu_hadamard_quant_jax_forward,
    grouped_gemm_glu_hadamard_quant_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.quant import (
    GroupedGemmQuantSm100,
    grouped_gemm_quant_jax_forward,
    grouped_gemm_quant_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.srelu import (
    GroupedGemmSreluSm100,
    grouped_gemm_srelu_jax_forward,
    grouped_gemm_srelu_wrapper_sm100,
)
from cudnn.gemm.cutedsl.grouped.swiglu import GroupedGemmSwigluSm100, grouped_gemm_swiglu_wrapper_sm100
from cudnn.gemm.cutedsl.grouped.unfused import GroupedGemmSm100, grouped_gemm_jax_sm100, grouped_gemm_wrapper_sm100
from cudnn.gemm.cutedsl.grouped.wgrad import (
    GroupedGemmWgradSm100,
    WGradInputOrder,
    get_grouped_gemm_wgrad_workspace_size_sm100,
    grouped_gemm_wgrad_jax_sm100,
    grouped_gemm_wgrad_wrapper_sm100,
)
from cudnn_fe.grouped import PreparedGroupedGemm, prepare_grouped_gemm

__all__ = [
    "GroupedGemmDgluSm100",
    "GroupedGemmDsreluSm100",
    "GroupedGemmDswigluSm100",
    "GroupedGemmGluHadamardQuantSm100",
    "GroupedGemmGluHadamardSm100",
    "GroupedGemmGluSm100",
    "GroupedGemmQuantSm100",
    "GroupedGemmSm100",
    "GroupedGemmSreluSm100",
    "GroupedGemmSwigluSm100",
    "GroupedGemmWgradSm100",
    "PreparedGroupedGemm",
    "WGradInputOrder",
    "get_grouped_gemm_wgrad_workspace_size_sm100",
    "grouped_gemm_dglu_jax_sm100",
    "grouped_gemm_dglu_wrapper_sm100",
    "grouped_gemm_dsrelu_jax_sm100",
    "grouped_gemm_dsrelu_wrapper_sm100",
    "grouped_gemm_dswiglu_wrapper_sm100",
    "grouped_gemm_glu_hadamard_jax_forward",
    "grouped_gemm_glu_hadamard_quant_jax_forward",
    "grouped_gemm_glu_hadamard_quant_wrapper_sm100",
    "grouped_gemm_glu_hadamard_wrapper_sm100",
    "grouped_gemm_glu_jax_sm100",
    "grouped_gemm_glu_wrapper_sm100",
    "grouped_gemm_jax_sm100",
    "grouped_gemm_quant_jax_forward",
    "grouped_gemm_quant_wrapper_sm100",
    "grouped_gemm_srelu_jax_forward",
    "grouped_gemm_srelu_wrapper_sm100",
    "grouped_gemm_swiglu_wrapper_sm100",
    "grouped_gemm_wgrad_jax_sm100",
    "grouped_gemm_wgrad_wrapper_sm100",
    "grouped_gemm_wrapper_sm100",
    "prepare_grouped_gemm",
]
