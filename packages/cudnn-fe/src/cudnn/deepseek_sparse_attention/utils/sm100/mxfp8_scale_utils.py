"""Packing of block scales by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.dsa.scales import (
    make_scale_cu_seqlens_padded,
    minimal_padded_token_capacity,
    pack_blockscaled_scale_mkl,
    pack_k_scale_bshd,
    pack_k_scale_thd,
    pack_q_scale_bshd,
    pack_q_scale_thd,
    pack_qk_scale_bshd,
)

__all__ = [
    "make_scale_cu_seqlens_padded",
    "minimal_padded_token_capacity",
    "pack_blockscaled_scale_mkl",
    "pack_k_scale_bshd",
    "pack_k_scale_thd",
    "pack_q_scale_bshd",
    "pack_q_scale_thd",
    "pack_qk_scale_bshd",
]
