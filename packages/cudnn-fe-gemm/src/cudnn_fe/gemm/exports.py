"""What this family announces to ``cudnn``: public names, legacy names, and its ops."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_SWIGLU = "cudnn_fe.gemm.swiglu"
_LEGACY = "cudnn_fe.gemm.legacy"

FAMILY = Family(
    name="gemm",
    package="cudnn-fe-gemm",
    op_targets=(
        "cudnn_fe.gemm.swiglu.op:FORWARD",
        "cudnn_fe.gemm.matmul.op:MATMUL",
        "cudnn_fe.gemm.dswiglu.op:DSWIGLU",
    ),
    exports={
        "gemm_swiglu_forward": f"{_SWIGLU}:gemm_swiglu_forward",
        "gemm_swiglu_backward": f"{_SWIGLU}:gemm_swiglu_backward",
        "gemm_swiglu_jax_forward": f"{_SWIGLU}:gemm_swiglu_jax_forward",
        "gemm_swiglu_jax_backward": f"{_SWIGLU}:gemm_swiglu_jax_backward",
        "gemm_swiglu_wrapper_sm100": f"{_LEGACY}:gemm_swiglu_wrapper_sm100",
        "gemm_swiglu_jax_sm100": f"{_LEGACY}:gemm_swiglu_jax_sm100",
        "GemmSwigluSm100": f"{_LEGACY}:GemmSwigluSm100",
    },
)
