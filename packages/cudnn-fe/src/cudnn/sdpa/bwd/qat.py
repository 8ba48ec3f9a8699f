"""Gradients of NVFP4 attention by their module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.nvfp4_qat import nvfp4_attention_qat_backward
from cudnn_fe.attention.nvfp4_qat.legacy import Nvfp4AttentionQatBackward

__all__ = ["Nvfp4AttentionQatBackward", "nvfp4_attention_qat_backward"]
