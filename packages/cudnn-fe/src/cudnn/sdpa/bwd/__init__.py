"""Gradients of softmax attention by their module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.nvfp4_qat import nvfp4_attention_qat_backward
from cudnn_fe.attention.nvfp4_qat.legacy import Nvfp4AttentionQatBackward
from cudnn_fe.attention.sdpa.compact_gqa import CompactGqaBackward, compact_gqa_backward
from cudnn_fe.attention.sdpa.legacy import (
    SdpaBackward,
    SdpaBwdDsl,
    SdpaBwdDslSm80,
    SdpaBwdDslSm100D256,
    SdpaBwdDslSm107,
    SdpaBwdDslSm107Fp8,
    SdpaBwdDslSm107Mxfp8,
    SdpaBwdDslSm120,
    sdpa_bwd_wrapper_dsl_sm120,
    sdpa_bwd_wrapper_sm80,
)

__all__ = [
    "CompactGqaBackward",
    "Nvfp4AttentionQatBackward",
    "SdpaBackward",
    "SdpaBwdDsl",
    "SdpaBwdDslSm80",
    "SdpaBwdDslSm100D256",
    "SdpaBwdDslSm107",
    "SdpaBwdDslSm107Fp8",
    "SdpaBwdDslSm107Mxfp8",
    "SdpaBwdDslSm120",
    "compact_gqa_backward",
    "nvfp4_attention_qat_backward",
    "sdpa_bwd_wrapper_dsl_sm120",
    "sdpa_bwd_wrapper_sm80",
]
