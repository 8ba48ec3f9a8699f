"""The engram gate by its module path in cudnn-frontend 1.32."""

from cudnn_fe.norm_rope.engram_gate import engram_gate_saved_backward, engram_gate_saved_forward
from cudnn_fe.norm_rope.engram_gate.legacy import EngramGateSavedBackward, EngramGateSavedForward

__all__ = [
    "EngramGateSavedBackward",
    "EngramGateSavedForward",
    "engram_gate_saved_backward",
    "engram_gate_saved_forward",
]
