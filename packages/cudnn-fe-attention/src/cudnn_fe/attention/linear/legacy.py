"""Linear attention under the names of cudnn-frontend 1.32."""

from cudnn_fe.attention.linear import gated_delta_net_forward as gated_delta_net
from cudnn_fe.attention.linear import kimi_delta_attention_forward as kimi_delta_attention
from cudnn_fe.attention.linear.erasing import gated_delta_net_v2_forward as gated_delta_net_v2
from cudnn_fe.attention.linear.product import gated_delta_product_forward as gated_delta_product
from cudnn_fe.attention.mamba2 import mamba2

__all__ = ["gated_delta_net", "gated_delta_net_v2", "gated_delta_product", "kimi_delta_attention", "mamba2"]
