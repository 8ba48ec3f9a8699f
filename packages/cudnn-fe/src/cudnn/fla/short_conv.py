"""The short convolution's shim by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.fla.short_conv import last_path, make_causal_conv1d_update

__all__ = ["last_path", "make_causal_conv1d_update"]
