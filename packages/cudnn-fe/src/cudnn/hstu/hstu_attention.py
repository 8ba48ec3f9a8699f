"""HSTU attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.hstu import hstu_attention_backward, hstu_attention_forward
from cudnn_fe.attention.hstu.legacy import HSTUBwd, HSTUBwdSm100, HSTUFwd, HSTUFwdSm100

__all__ = [
    "HSTUBwd",
    "HSTUBwdSm100",
    "HSTUFwd",
    "HSTUFwdSm100",
    "hstu_attention_backward",
    "hstu_attention_forward",
]
