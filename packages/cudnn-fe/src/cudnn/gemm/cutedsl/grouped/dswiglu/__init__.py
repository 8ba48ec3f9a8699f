"""The block-scaled grouped GEMM with SwiGLU's derivative by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped.classes_scaled import GroupedGemmDswigluSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_dswiglu_wrapper_sm100

__all__ = [
    "GroupedGemmDswigluSm100",
    "grouped_gemm_dswiglu_wrapper_sm100",
]
