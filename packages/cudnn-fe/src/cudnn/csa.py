"""Compressed sparse attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.csa_compressor.legacy import (
    CSACompressorBackward,
    CSACompressorForward,
    csa_compressor_backward_wrapper,
    csa_compressor_forward_wrapper,
)
from cudnn_fe.attention.namespaces import CSA

__all__ = [
    "CSA",
    "CSACompressorBackward",
    "CSACompressorForward",
    "csa_compressor_backward_wrapper",
    "csa_compressor_forward_wrapper",
]
