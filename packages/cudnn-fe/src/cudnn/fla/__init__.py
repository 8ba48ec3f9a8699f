"""Functions of flash-linear-attention served by this project, by their module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.fla import (
    accelerate_fla,
    is_accelerated,
    last_path,
    mlp_last_path,
    restore_fla,
    short_conv_last_path,
)

__all__ = [
    "accelerate_fla",
    "is_accelerated",
    "last_path",
    "mlp_last_path",
    "restore_fla",
    "short_conv_last_path",
]
