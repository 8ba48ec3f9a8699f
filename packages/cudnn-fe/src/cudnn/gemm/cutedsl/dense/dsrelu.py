"""GEMM + squared ReLU's derivative by its module path in cudnn-frontend 1.32."""

from cudnn_fe.gemm.legacy_scaled import GemmDsreluSm100, gemm_dsrelu_jax_sm100, gemm_dsrelu_wrapper_sm100

__all__ = ["GemmDsreluSm100", "gemm_dsrelu_jax_sm100", "gemm_dsrelu_wrapper_sm100"]
