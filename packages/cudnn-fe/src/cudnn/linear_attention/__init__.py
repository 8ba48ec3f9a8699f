"""Linear attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.linear.legacy import (
    gated_delta_net,
    gated_delta_net_summary,
    gated_delta_net_summary_bwd,
    gated_delta_net_v2,
    gated_delta_net_v2_summary,
    gated_delta_net_v2_summary_bwd,
    gated_delta_product,
    gated_delta_product_summary,
    gated_delta_product_summary_bwd,
    kimi_delta_attention,
    kimi_delta_attention_summary,
    kimi_delta_attention_summary_bwd,
    mamba2,
)

__all__ = [
    "gated_delta_net",
    "gated_delta_net_summary",
    "gated_delta_net_summary_bwd",
    "gated_delta_net_v2",
    "gated_delta_net_v2_summary",
    "gated_delta_net_v2_summary_bwd",
    "gated_delta_product",
    "gated_delta_product_summary",
    "gated_delta_product_summary_bwd",
    "kimi_delta_attention",
    "kimi_delta_attention_summary",
    "kimi_delta_attention_summary_bwd",
    "mamba2",
]
