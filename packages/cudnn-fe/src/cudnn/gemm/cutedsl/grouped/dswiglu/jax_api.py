"""The block-scaled grouped GEMM with the derivative of SwiGLU for JAX, by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_swiglu_jax_backward as grouped_gemm_dswiglu

__all__ = ["grouped_gemm_dswiglu"]
