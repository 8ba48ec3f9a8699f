"""Fused dense GEMMs for torch, JAX and NumPy."""

from cudnn_fe.gemm._version import __version__
from cudnn_fe.gemm.amax import gemm_amax_forward, gemm_amax_jax_forward
from cudnn_fe.gemm.dsrelu import gemm_srelu_backward, gemm_srelu_jax_backward
from cudnn_fe.gemm.mhc_projection import mhc_projection_backward, mhc_projection_jax_backward
from cudnn_fe.gemm.proj_rope import gemm_proj_rope_mxfp8_forward, gemm_proj_rope_mxfp8_jax_forward
from cudnn_fe.gemm.srelu import gemm_srelu_forward, gemm_srelu_jax_forward
from cudnn_fe.gemm.swiglu import (
    gemm_swiglu_backward,
    gemm_swiglu_forward,
    gemm_swiglu_jax_backward,
    gemm_swiglu_jax_forward,
)
from cudnn_fe.gemm.swiglu_mlp import swiglu_mlp, swiglu_mlp_backward, swiglu_mlp_forward
from cudnn_fe.gemm.swiglu_scaled import gemm_swiglu_scaled_forward

__all__ = [
    "__version__",
    "gemm_amax_forward",
    "gemm_amax_jax_forward",
    "gemm_proj_rope_mxfp8_forward",
    "gemm_proj_rope_mxfp8_jax_forward",
    "gemm_srelu_backward",
    "gemm_srelu_forward",
    "gemm_srelu_jax_backward",
    "gemm_srelu_jax_forward",
    "gemm_swiglu_backward",
    "gemm_swiglu_forward",
    "gemm_swiglu_jax_backward",
    "gemm_swiglu_jax_forward",
    "gemm_swiglu_scaled_forward",
    "mhc_projection_backward",
    "mhc_projection_jax_backward",
    "swiglu_mlp",
    "swiglu_mlp_backward",
    "swiglu_mlp_forward",
]
