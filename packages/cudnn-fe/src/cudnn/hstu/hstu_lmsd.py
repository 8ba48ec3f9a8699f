"""LayerNorm-Multiply-SiLU-Dropout by its module path in cudnn-frontend 1.32."""

from cudnn_fe.norm_rope.hstu_lmsd import hstu_lmsd_backward, hstu_lmsd_forward

__all__ = ["hstu_lmsd_backward", "hstu_lmsd_forward"]
