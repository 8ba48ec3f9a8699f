"""The block-scaled grouped GEMM with SwiGLU by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped.classes_scaled import GroupedGemmSwigluSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_swiglu_wrapper_sm100

__all__ = [
    "GroupedGemmSwigluSm100",
    "grouped_gemm_swiglu_wrapper_sm100",
]
