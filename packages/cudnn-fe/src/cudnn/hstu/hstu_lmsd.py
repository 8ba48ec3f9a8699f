"""LayerNorm-Multiply-SiLU-Dropout by its module path in cudnn-frontend 1.32."""

from cudnn_fe.norm_rope.hstu_lmsd import hstu_lmsd_backward, hstu_lmsd_forward
from cudnn_fe.norm_rope.hstu_lmsd.legacy import HSTULMSDBwd, HSTULMSDFwd

__all__ = ["HSTULMSDBwd", "HSTULMSDFwd", "hstu_lmsd_backward", "hstu_lmsd_forward"]
