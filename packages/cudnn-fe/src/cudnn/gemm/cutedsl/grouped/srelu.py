"""The block-scaled grouped GEMM with squared ReLU by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_srelu_jax_forward
from cudnn_fe.grouped.classes_scaled import GroupedGemmSreluSm100
from cudnn_fe.grouped.legacy_scaled import grouped_gemm_srelu_wrapper_sm100

__all__ = [
    "GroupedGemmSreluSm100",
    "grouped_gemm_srelu_jax_forward",
    "grouped_gemm_srelu_wrapper_sm100",
]
