"""The query projection with rotary embedding by its module path in cudnn-frontend 1.32."""

from cudnn_fe.gemm.legacy_proj_rope import (
    GemmProjRopeMxfp8Bf16InSm100,
    GemmProjRopeMxfp8Mxfp8InSm100,
    gemm_proj_rope_mxfp8_jax_sm100,
    gemm_proj_rope_mxfp8_wrapper_sm100,
)
from cudnn_fe.gemm.proj_rope import gemm_proj_rope_mxfp8_reference

__all__ = [
    "GemmProjRopeMxfp8Bf16InSm100",
    "GemmProjRopeMxfp8Mxfp8InSm100",
    "gemm_proj_rope_mxfp8_jax_sm100",
    "gemm_proj_rope_mxfp8_reference",
    "gemm_proj_rope_mxfp8_wrapper_sm100",
]
