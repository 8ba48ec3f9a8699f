"""DeepSeek sparse attention: the indexer, its losses, and attention over what it lists."""

from cudnn_fe.attention.dsa.dense_scores import dsa_dense_attn_score_forward, dsa_dense_indexer_score_forward
from cudnn_fe.attention.dsa.indexer import dsa_indexer_forward, dsa_indexer_fused_top_k_forward
from cudnn_fe.attention.dsa.indexer_backward import dsa_dense_indexer_backward, dsa_indexer_backward
from cudnn_fe.attention.dsa.indices import dsa_compactify_forward, dsa_local_to_global_forward
from cudnn_fe.attention.dsa.sparse_attention import dsa_sparse_attention_backward, dsa_sparse_attention_forward
from cudnn_fe.attention.dsa.sparse_scores import dsa_sparse_attn_score_forward, dsa_sparse_indexer_score_forward
from cudnn_fe.attention.dsa.top_k import dsa_indexer_top_k_forward

__all__ = [
    "dsa_compactify_forward",
    "dsa_dense_attn_score_forward",
    "dsa_dense_indexer_backward",
    "dsa_dense_indexer_score_forward",
    "dsa_indexer_backward",
    "dsa_indexer_forward",
    "dsa_indexer_fused_top_k_forward",
    "dsa_indexer_top_k_forward",
    "dsa_local_to_global_forward",
    "dsa_sparse_attention_backward",
    "dsa_sparse_attention_forward",
    "dsa_sparse_attn_score_forward",
    "dsa_sparse_indexer_score_forward",
]
