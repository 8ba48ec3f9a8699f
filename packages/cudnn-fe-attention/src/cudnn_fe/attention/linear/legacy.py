"""Gated delta rules under the names of cudnn-frontend 1.32."""

from cudnn_fe.attention.linear import gated_delta_net_forward as gated_delta_net
from cudnn_fe.attention.linear import kimi_delta_attention_forward as kimi_delta_attention

__all__ = ["gated_delta_net", "kimi_delta_attention"]
