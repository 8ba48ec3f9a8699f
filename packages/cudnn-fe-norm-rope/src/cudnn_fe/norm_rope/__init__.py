"""RMSNorm, RoPE, gate and quantise fusions for torch, JAX and NumPy."""

from cudnn_fe.norm_rope._version import __version__
from cudnn_fe.norm_rope.engram_gate import (
    engram_gate_saved_backward,
    engram_gate_saved_forward,
    engram_gate_saved_jax_backward,
    engram_gate_saved_jax_forward,
)
from cudnn_fe.norm_rope.hstu_lmsd import (
    hstu_lmsd_backward,
    hstu_lmsd_forward,
    hstu_lmsd_jax_backward,
    hstu_lmsd_jax_forward,
)
from cudnn_fe.norm_rope.rmsnorm_rht_amax import rmsnorm_rht_amax_forward, rmsnorm_rht_amax_jax_forward
from cudnn_fe.norm_rope.rmsnorm_silu import rmsnorm_silu_forward, rmsnorm_silu_jax_forward
from cudnn_fe.norm_rope.rope_qdq import rope_qdq_inplace_forward, rope_qdq_jax_forward
from cudnn_fe.norm_rope.rope_tail import tail_rope_forward, tail_rope_jax_forward
from cudnn_fe.norm_rope.vision_rope import vision_rope_backward, vision_rope_jax_backward

__all__ = [
    "__version__",
    "engram_gate_saved_backward",
    "engram_gate_saved_forward",
    "engram_gate_saved_jax_backward",
    "engram_gate_saved_jax_forward",
    "hstu_lmsd_backward",
    "hstu_lmsd_forward",
    "hstu_lmsd_jax_backward",
    "hstu_lmsd_jax_forward",
    "rmsnorm_rht_amax_forward",
    "rmsnorm_rht_amax_jax_forward",
    "rmsnorm_silu_forward",
    "rmsnorm_silu_jax_forward",
    "rope_qdq_inplace_forward",
    "rope_qdq_jax_forward",
    "tail_rope_forward",
    "tail_rope_jax_forward",
    "vision_rope_backward",
    "vision_rope_jax_backward",
]
