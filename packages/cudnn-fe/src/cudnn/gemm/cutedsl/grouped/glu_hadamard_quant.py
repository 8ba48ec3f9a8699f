"""The FP4 grouped GEMM with NVFP4 results by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_glu_hadamard_quant_jax_forward
from cudnn_fe.grouped.classes_hadamard import GroupedGemmGluHadamardQuantSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_glu_hadamard_quant_wrapper_sm100

__all__ = [
    "GroupedGemmGluHadamardQuantSm100",
    "grouped_gemm_glu_hadamard_quant_jax_forward",
    "grouped_gemm_glu_hadamard_quant_wrapper_sm100",
]
