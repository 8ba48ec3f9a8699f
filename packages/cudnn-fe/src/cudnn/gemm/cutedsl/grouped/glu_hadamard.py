"""The FP4 grouped GEMM that measures a Hadamard transform by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_glu_hadamard_jax_forward
from cudnn_fe.grouped.classes_hadamard import GroupedGemmGluHadamardSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_glu_hadamard_wrapper_sm100

__all__ = [
    "GroupedGemmGluHadamardSm100",
    "grouped_gemm_glu_hadamard_jax_forward",
    "grouped_gemm_glu_hadamard_wrapper_sm100",
]
