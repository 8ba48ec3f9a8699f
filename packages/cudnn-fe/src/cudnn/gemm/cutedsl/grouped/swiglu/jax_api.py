"""The block-scaled grouped GEMM with SwiGLU for JAX, by its module path in cudnn-frontend 1.32."""

from cudnn_fe.grouped import grouped_gemm_swiglu_jax_forward as grouped_gemm_swiglu

__all__ = ["grouped_gemm_swiglu"]
