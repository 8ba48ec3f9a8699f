"""The namespace objects of ``cudnn``: tables of names, resolved when asked for."""

from __future__ import annotations

from cudnn_fe.core.namespace import Namespace

__all__ = ["BSA"]

_BSA = "cudnn_fe.attention.block_sparse"

BSA = Namespace(
    "BSA",
    {
        "block_sparse_attention_forward": f"{_BSA}:block_sparse_attention_forward",
        "block_sparse_attention_backward": f"{_BSA}:block_sparse_attention_backward",
    },
)
