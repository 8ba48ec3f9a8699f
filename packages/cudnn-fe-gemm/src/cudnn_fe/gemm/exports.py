"""What this family announces to ``cudnn``: public names, legacy names, and its ops."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_SWIGLU = "cudnn_fe.gemm.swiglu"
_LEGACY = "cudnn_fe.gemm.legacy"
_SCALED = "cudnn_fe.gemm.legacy_scaled"
_PROJ_ROPE = "cudnn_fe.gemm.proj_rope"
_LEGACY_PROJ_ROPE = "cudnn_fe.gemm.legacy_proj_rope"
_MHC = "cudnn_fe.gemm.mhc_projection"
_MLP = "cudnn_fe.gemm.swiglu_mlp"
_LEGACY_MHC = "cudnn_fe.gemm.legacy_mhc"

FAMILY = Family(
    name="gemm",
    package="cudnn-fe-gemm",
    op_targets=(
        "cudnn_fe.gemm.swiglu.op:FORWARD",
        "cudnn_fe.gemm.swiglu_scaled.op:SCALED",
        "cudnn_fe.gemm.matmul.op:MATMUL",
        "cudnn_fe.gemm.dswiglu.op:DSWIGLU",
        "cudnn_fe.gemm.amax.op:AMAX",
        "cudnn_fe.gemm.srelu.op:SRELU",
        "cudnn_fe.gemm.dsrelu.op:DSRELU",
        "cudnn_fe.gemm.proj_rope.op:FORWARD",
        "cudnn_fe.gemm.mhc_projection.op:BACKWARD",
        "cudnn_fe.gemm.swiglu_mlp.op:FORWARD",
        "cudnn_fe.gemm.swiglu_mlp.op:BACKWARD",
    ),
    exports={
        "gemm_swiglu_forward": f"{_SWIGLU}:gemm_swiglu_forward",
        "gemm_swiglu_scaled_forward": "cudnn_fe.gemm.swiglu_scaled:gemm_swiglu_scaled_forward",
        "gemm_swiglu_backward": f"{_SWIGLU}:gemm_swiglu_backward",
        "gemm_swiglu_jax_forward": f"{_SWIGLU}:gemm_swiglu_jax_forward",
        "gemm_swiglu_jax_backward": f"{_SWIGLU}:gemm_swiglu_jax_backward",
        "gemm_swiglu_wrapper_sm100": f"{_LEGACY}:gemm_swiglu_wrapper_sm100",
        "gemm_swiglu_jax_sm100": f"{_LEGACY}:gemm_swiglu_jax_sm100",
        "GemmSwigluSm100": f"{_LEGACY}:GemmSwigluSm100",
        "gemm_amax_forward": "cudnn_fe.gemm.amax:gemm_amax_forward",
        "gemm_amax_jax_forward": "cudnn_fe.gemm.amax:gemm_amax_jax_forward",
        "gemm_amax_wrapper_sm100": f"{_SCALED}:gemm_amax_wrapper_sm100",
        "gemm_amax_jax_sm100": f"{_SCALED}:gemm_amax_jax_sm100",
        "GemmAmaxSm100": f"{_SCALED}:GemmAmaxSm100",
        "gemm_srelu_forward": "cudnn_fe.gemm.srelu:gemm_srelu_forward",
        "gemm_srelu_jax_forward": "cudnn_fe.gemm.srelu:gemm_srelu_jax_forward",
        "gemm_srelu_wrapper_sm100": f"{_SCALED}:gemm_srelu_wrapper_sm100",
        "gemm_srelu_jax_sm100": f"{_SCALED}:gemm_srelu_jax_sm100",
        "GemmSreluSm100": f"{_SCALED}:GemmSreluSm100",
        "gemm_srelu_backward": "cudnn_fe.gemm.dsrelu:gemm_srelu_backward",
        "gemm_srelu_jax_backward": "cudnn_fe.gemm.dsrelu:gemm_srelu_jax_backward",
        "gemm_dsrelu_wrapper_sm100": f"{_SCALED}:gemm_dsrelu_wrapper_sm100",
        "gemm_dsrelu_jax_sm100": f"{_SCALED}:gemm_dsrelu_jax_sm100",
        "GemmDsreluSm100": f"{_SCALED}:GemmDsreluSm100",
        "gemm_proj_rope_mxfp8_forward": f"{_PROJ_ROPE}:gemm_proj_rope_mxfp8_forward",
        "gemm_proj_rope_mxfp8_jax_forward": f"{_PROJ_ROPE}:gemm_proj_rope_mxfp8_jax_forward",
        "gemm_proj_rope_mxfp8_wrapper_sm100": f"{_LEGACY_PROJ_ROPE}:gemm_proj_rope_mxfp8_wrapper_sm100",
        "gemm_proj_rope_mxfp8_jax_sm100": f"{_LEGACY_PROJ_ROPE}:gemm_proj_rope_mxfp8_jax_sm100",
        "GemmProjRopeMxfp8Bf16InSm100": f"{_LEGACY_PROJ_ROPE}:GemmProjRopeMxfp8Bf16InSm100",
        "GemmProjRopeMxfp8Mxfp8InSm100": f"{_LEGACY_PROJ_ROPE}:GemmProjRopeMxfp8Mxfp8InSm100",
        "mhc_projection_backward": f"{_MHC}:mhc_projection_backward",
        "mhc_projection_jax_backward": f"{_MHC}:mhc_projection_jax_backward",
        "MhcProjectionBackward": f"{_LEGACY_MHC}:MhcProjectionBackward",
        "swiglu_mlp_forward": f"{_MLP}:swiglu_mlp_forward",
        "swiglu_mlp_backward": f"{_MLP}:swiglu_mlp_backward",
        "gemm.swiglu_mlp": f"{_MLP}:swiglu_mlp",
        "gemm.ops.swiglu_mlp": f"{_MLP}:swiglu_mlp",
        "gemm.mhc_projection_backward": f"{_MHC}:mhc_projection_backward",
        "gemm.MhcProjectionBackward": f"{_LEGACY_MHC}:MhcProjectionBackward",
    },
)
