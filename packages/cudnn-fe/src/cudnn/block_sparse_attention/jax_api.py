"""Block-sparse attention for JAX by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.block_sparse import block_sparse_attention_jax as block_sparse_attention
from cudnn_fe.attention.block_sparse import block_sparse_attention_jax_backward as block_sparse_attention_backward
from cudnn_fe.attention.block_sparse import block_sparse_attention_jax_forward as block_sparse_attention_forward

__all__ = [
    "block_sparse_attention",
    "block_sparse_attention_backward",
    "block_sparse_attention_forward",
]
