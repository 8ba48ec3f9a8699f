"""The block-scaled grouped GEMM by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_quant_jax_forward
from cudnn_fe.grouped.classes_scaled import GroupedGemmQuantSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_quant_wrapper_sm100

__all__ = [
    "GroupedGemmQuantSm100",
    "grouped_gemm_quant_jax_forward",
    "grouped_gemm_quant_wrapper_sm100",
]
