"""GEMM + amax by its module path in cudnn-frontend 1.32."""

from cudnn_fe.gemm.legacy_scaled import GemmAmaxSm100, gemm_amax_jax_sm100, gemm_amax_wrapper_sm100

__all__ = ["GemmAmaxSm100", "gemm_amax_jax_sm100", "gemm_amax_wrapper_sm100"]
