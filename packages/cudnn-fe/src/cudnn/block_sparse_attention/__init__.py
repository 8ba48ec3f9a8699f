"""Block-sparse attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.block_sparse import block_sparse_attention_backward, block_sparse_attention_forward
from cudnn_fe.attention.block_sparse_fp8 import block_sparse_attention_fp8_forward
from cudnn_fe.attention.namespaces import BSA

__all__ = [
    "BSA",
    "block_sparse_attention_backward",
    "block_sparse_attention_forward",
    "block_sparse_attention_fp8_forward",
]
