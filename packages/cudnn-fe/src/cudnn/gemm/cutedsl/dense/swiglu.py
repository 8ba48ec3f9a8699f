"""GEMM + SwiGLU by its module path in cudnn-frontend 1.32."""

from cudnn_fe.gemm.legacy import GemmSwigluSm100, gemm_swiglu_jax_sm100, gemm_swiglu_wrapper_sm100

__all__ = ["GemmSwigluSm100", "gemm_swiglu_jax_sm100", "gemm_swiglu_wrapper_sm100"]
