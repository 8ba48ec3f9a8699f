"""Linear attention under the names of cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from cudnn_fe.attention.linear import gated_delta_net_forward as gated_delta_net
from cudnn_fe.attention.linear import kimi_delta_attention_forward as kimi_delta_attention
from cudnn_fe.attention.linear import summaries_backward
from cudnn_fe.attention.linear.erasing import gated_delta_net_v2_forward as gated_delta_net_v2
from cudnn_fe.attention.linear.product import gated_delta_product_forward as gated_delta_product
from cudnn_fe.attention.linear.summaries import gated_delta_net_summary_forward as gated_delta_net_summary
from cudnn_fe.attention.linear.summaries import gated_delta_net_v2_summary_forward as gated_delta_net_v2_summary
from cudnn_fe.attention.linear.summaries import gated_delta_product_summary_forward as gated_delta_product_summary
from cudnn_fe.attention.linear.summaries import kimi_delta_attention_summary_forward as kimi_delta_attention_summary
from cudnn_fe.attention.mamba2 import mamba2

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


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A summary of gradients that gives the transitions only where they are asked for."""

    @wraps(function)
    def summary(*args: Any, **kwargs: Any) -> Any:
        gradient, transition = function(*args, **kwargs)
        return (gradient, transition) if kwargs.get("output_transition") else gradient

    return summary


gated_delta_net_summary_bwd = _alone(summaries_backward.gated_delta_net_summary_backward)
kimi_delta_attention_summary_bwd = _alone(summaries_backward.kimi_delta_attention_summary_backward)
gated_delta_net_v2_summary_bwd = _alone(summaries_backward.gated_delta_net_v2_summary_backward)
gated_delta_product_summary_bwd = _alone(summaries_backward.gated_delta_product_summary_backward)
