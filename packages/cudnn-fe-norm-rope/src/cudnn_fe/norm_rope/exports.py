"""What this family announces to ``cudnn``: public names, legacy names, and its ops."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_BASE = "cudnn_fe.norm_rope"
_OPS = (
    "rmsnorm_rht_amax.op:FORWARD",
    "rmsnorm_silu.op:FORWARD",
    "rope_tail.op:FORWARD",
    "vision_rope.op:BACKWARD",
    "rope_qdq.op:FORWARD",
    "engram_gate.op:FORWARD",
    "engram_gate.op:BACKWARD",
    "hstu_lmsd.op:FORWARD",
    "hstu_lmsd.op:BACKWARD",
)
_NAMES = {
    "rmsnorm_rht_amax": "rmsnorm_rht_amax_forward rmsnorm_rht_amax_jax_forward",
    "rmsnorm_rht_amax.legacy": "rmsnorm_rht_amax_wrapper_sm100 RmsNormRhtAmaxSm100",
    "rmsnorm_silu": "rmsnorm_silu_forward rmsnorm_silu_jax_forward",
    "rope_tail": "tail_rope_forward tail_rope_jax_forward",
    "rope_tail.legacy": "tail_rope TailRoPEForward",
    "rope_qdq": "rope_qdq_inplace_forward rope_qdq_jax_forward",
    "rope_qdq.legacy": "rope_qdq_inplace RopeQDQInplace",
    "vision_rope": "vision_rope_backward vision_rope_jax_backward",
    "vision_rope.legacy": "vision_rope_backward_wrapper VisionRoPEBackward",
    "engram_gate": "engram_gate_saved_forward engram_gate_saved_backward "
    "engram_gate_saved_jax_forward engram_gate_saved_jax_backward",
    "engram_gate.legacy": "EngramGateSavedForward EngramGateSavedBackward",
    "hstu_lmsd.legacy": "HSTULMSDFwd HSTULMSDBwd",
    "hstu_lmsd": "hstu_lmsd_forward hstu_lmsd_backward hstu_lmsd_jax_forward hstu_lmsd_jax_backward",
}

FAMILY = Family(
    name="norm_rope",
    package="cudnn-fe-norm-rope",
    op_targets=tuple(f"{_BASE}.{target}" for target in _OPS),
    exports={name: f"{_BASE}.{module}:{name}" for module, names in _NAMES.items() for name in names.split()},
)
