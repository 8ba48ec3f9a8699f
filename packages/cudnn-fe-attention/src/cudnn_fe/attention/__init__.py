"""Sparse, windowed and recommender attention for torch, JAX and NumPy."""

from cudnn_fe.attention._version import __version__
from cudnn_fe.attention.block_sparse import (
    block_sparse_attention_backward,
    block_sparse_attention_forward,
    block_sparse_attention_jax,
    block_sparse_attention_jax_backward,
    block_sparse_attention_jax_forward,
)

__all__ = [
    "__version__",
    "block_sparse_attention_backward",
    "block_sparse_attention_forward",
    "block_sparse_attention_jax",
    "block_sparse_attention_jax_backward",
    "block_sparse_attention_jax_forward",
]
