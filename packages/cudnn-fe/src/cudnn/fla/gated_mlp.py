"""The gated MLP's shim by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.fla.gated_mlp import last_path, make_gated_mlp_forward

__all__ = ["last_path", "make_gated_mlp_forward"]
