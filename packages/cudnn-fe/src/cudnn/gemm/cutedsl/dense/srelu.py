"""GEMM + squared ReLU by its module path in cudnn-frontend 1.32."""

from cudnn_fe.gemm.legacy_scaled import GemmSreluSm100, gemm_srelu_jax_sm100, gemm_srelu_wrapper_sm100

__all__ = ["GemmSreluSm100", "gemm_srelu_jax_sm100", "gemm_srelu_wrapper_sm100"]
