"""Linear attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.linear.legacy import (
    gated_delta_net,
    gated_delta_net_v2,
    gated_delta_product,
    kimi_delta_attention,
    mamba2,
)

__all__ = ["gated_delta_net", "gated_delta_net_v2", "gated_delta_product", "kimi_delta_attention", "mamba2"]
