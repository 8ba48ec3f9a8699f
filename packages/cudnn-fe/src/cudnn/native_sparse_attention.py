"""Native sparse attention by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.namespaces import NSA

__all__ = [
    "NSA",
]
