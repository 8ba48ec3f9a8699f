"""The gated delta rule's shim by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.fla.gated_delta_rule import last_path, make_chunk_gated_delta_rule

__all__ = ["last_path", "make_chunk_gated_delta_rule"]
