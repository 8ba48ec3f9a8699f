"""Rotary embeddings by their module path in cudnn-frontend 1.32."""

from cudnn_fe.norm_rope.rope_qdq.legacy import RopeQDQInplace, rope_qdq_inplace
from cudnn_fe.norm_rope.rope_tail.legacy import TailRoPEForward, tail_rope
from cudnn_fe.norm_rope.vision_rope.legacy import VisionRoPEBackward, vision_rope_backward_wrapper

__all__ = [
    "RopeQDQInplace",
    "TailRoPEForward",
    "VisionRoPEBackward",
    "rope_qdq_inplace",
    "tail_rope",
    "vision_rope_backward_wrapper",
]
