"""RMSNorm + Hadamard + amax by its module path in cudnn-frontend 1.32."""

from cudnn_fe.norm_rope.rmsnorm_rht_amax.legacy import RmsNormRhtAmaxSm100, rmsnorm_rht_amax_wrapper_sm100
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import best_num_threads, pick_rows_per_cta

__all__ = ["RmsNormRhtAmaxSm100", "best_num_threads", "pick_rows_per_cta", "rmsnorm_rht_amax_wrapper_sm100"]
