"""Fused dense GEMMs for torch, JAX and NumPy."""

from cudnn_fe.gemm._version import __version__
from cudnn_fe.gemm.swiglu import (
    gemm_swiglu_backward,
    gemm_swiglu_forward,
    gemm_swiglu_jax_backward,
    gemm_swiglu_jax_forward,
)

__all__ = [
    "__version__",
    "gemm_swiglu_backward",
    "gemm_swiglu_forward",
    "gemm_swiglu_jax_backward",
    "gemm_swiglu_jax_forward",
]
