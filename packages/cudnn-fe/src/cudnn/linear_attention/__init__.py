"""Gated delta rules by their module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.linear.legacy import gated_delta_net, kimi_delta_attention

__all__ = ["gated_delta_net", "kimi_delta_attention"]
