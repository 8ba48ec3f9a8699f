"""RMSNorm, RoPE, gate and quantise fusions for torch, JAX and NumPy."""

from cudnn_fe.norm_rope._version import __version__
from cudnn_fe.norm_rope.rmsnorm_rht_amax import rmsnorm_rht_amax_forward, rmsnorm_rht_amax_jax_forward

__all__ = ["__version__", "rmsnorm_rht_amax_forward", "rmsnorm_rht_amax_jax_forward"]
