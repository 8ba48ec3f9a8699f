"""The namespace objects of ``cudnn``: tables of names, resolved when asked for."""

from __future__ import annotations

from cudnn_fe.core.namespace import Namespace

__all__ = ["BSA", "CSA", "NSA"]

_BSA = "cudnn_fe.attention.block_sparse"
_CSA = "cudnn_fe.attention.csa_compressor.legacy"
_NSA = "cudnn_fe.attention.nsa_legacy"

BSA = Namespace(
    "BSA",
    {
        "block_sparse_attention_forward": f"{_BSA}:block_sparse_attention_forward",
        "block_sparse_attention_fp8_forward": f"{_BSA}_fp8:block_sparse_attention_fp8_forward",
        "block_sparse_attention_backward": f"{_BSA}:block_sparse_attention_backward",
    },
)

NSA = Namespace(
    "NSA",
    {
        name: f"{_NSA}:{name}"
        for name in (
            "SelectionAttention",
            "selection_attention_wrapper",
            "SlidingWindowAttention",
            "sliding_window_attention_wrapper",
            "CompressionAttention",
            "compression_attention_wrapper",
            "TopKReduction",
            "topk_reduction_wrapper",
        )
    },
)

CSA = Namespace(
    "CSA",
    {
        name: f"{_CSA}:{name}"
        for name in (
            "CSACompressorForward",
            "CSACompressorBackward",
            "csa_compressor_forward_wrapper",
            "csa_compressor_backward_wrapper",
        )
    },
)
