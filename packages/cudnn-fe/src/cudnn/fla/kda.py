"""Kimi delta attention's shim by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.fla.kda import last_path, make_chunk_kda

__all__ = ["last_path", "make_chunk_kda"]
