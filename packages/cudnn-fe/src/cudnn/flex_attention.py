"""Flex attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.flex import MaskPlan, MaskPlanMetadata, create_mask_plan, flex_attention, flex_attn_func
from cudnn_fe.attention.flex.legacy import FlexAttentionBwd, FlexAttentionFwd

__all__ = [
    "FlexAttentionBwd",
    "FlexAttentionFwd",
    "MaskPlan",
    "MaskPlanMetadata",
    "create_mask_plan",
    "flex_attention",
    "flex_attn_func",
]
