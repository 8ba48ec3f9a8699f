"""The hyper-connections' projection gradients by their module path in cudnn-frontend 1.32."""

from cudnn_fe.gemm.legacy_mhc import MhcProjectionBackward
from cudnn_fe.gemm.mhc_projection import mhc_projection_backward

__all__ = ["MhcProjectionBackward", "mhc_projection_backward"]
