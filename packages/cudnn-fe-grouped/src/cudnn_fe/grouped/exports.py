"""What this family announces to ``cudnn``: public names, legacy names, and its ops."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_UNFUSED, _GLU, _DGLU, _WGRAD = (f"cudnn_fe.grouped.{name}" for name in ("unfused", "glu", "dglu", "wgrad"))
_LEGACY, _CLASSES = "cudnn_fe.grouped.legacy", "cudnn_fe.grouped.classes"

_OPS = (
    "unfused.op:FORWARD",
    "glu.op:FORWARD",
    "glu_gradient.op:GLU_GRADIENT",
    "row_sums.op:ROW_SUMS",
    "glu_scaled.op:SCALED",
    "dglu.op:BACKWARD",
    "wgrad.op:WGRAD",
    "swiglu.op:FORWARD",
    "quant.op:FORWARD",
    "srelu.op:FORWARD",
    "discrete_swiglu.op:FORWARD",
    "dglu_scaled.op:BACKWARD",
    "dswiglu.op:BACKWARD",
    "dsrelu.op:BACKWARD",
    "discrete_dswiglu.op:BACKWARD",
    "wgrad_scaled.op:SCALED",
    "glu_hadamard.op:FORWARD",
    "glu_hadamard_quant.op:FORWARD",
)
_SWIGLU, _QUANT, _SRELU, _DISCRETE_SWIGLU = (
    f"cudnn_fe.grouped.{name}" for name in ("swiglu", "quant", "srelu", "discrete_swiglu")
)
_DSWIGLU, _DSRELU, _DISCRETE_DSWIGLU = (
    f"cudnn_fe.grouped.{name}" for name in ("dswiglu", "dsrelu", "discrete_dswiglu")
)
_HADAMARD, _HADAMARD_QUANT = (f"cudnn_fe.grouped.{name}" for name in ("glu_hadamard", "glu_hadamard_quant"))
_LEGACY2, _CLASSES2 = "cudnn_fe.grouped.legacy_scaled", "cudnn_fe.grouped.classes_scaled"

FAMILY = Family(
    name="grouped",
    package="cudnn-fe-grouped",
    op_targets=tuple(f"cudnn_fe.grouped.{target}" for target in _OPS),
    exports={
        "DiscreteGroupedGemmDswigluSm100": f"{_CLASSES2}:DiscreteGroupedGemmDswigluSm100",
        "DiscreteGroupedGemmSwigluSm100": f"{_CLASSES2}:DiscreteGroupedGemmSwigluSm100",
        "GroupedGemmDgluSm100": f"{_CLASSES}:GroupedGemmDgluSm100",
        "GroupedGemmDsreluSm100": f"{_CLASSES2}:GroupedGemmDsreluSm100",
        "GroupedGemmDswigluSm100": f"{_CLASSES2}:GroupedGemmDswigluSm100",
        "GroupedGemmGluHadamardQuantSm100": "cudnn_fe.grouped.classes_hadamard:GroupedGemmGluHadamardQuantSm100",
        "GroupedGemmGluHadamardSm100": "cudnn_fe.grouped.classes_hadamard:GroupedGemmGluHadamardSm100",
        "GroupedGemmGluSm100": f"{_CLASSES}:GroupedGemmGluSm100",
        "GroupedGemmQuantSm100": f"{_CLASSES2}:GroupedGemmQuantSm100",
        "GroupedGemmSm100": f"{_CLASSES}:GroupedGemmSm100",
        "GroupedGemmSreluSm100": f"{_CLASSES2}:GroupedGemmSreluSm100",
        "GroupedGemmSwigluSm100": f"{_CLASSES2}:GroupedGemmSwigluSm100",
        "GroupedGemmWgradSm100": f"{_CLASSES}:GroupedGemmWgradSm100",
        "WGradInputOrder": f"{_WGRAD}:WGradInputOrder",
        "discrete_grouped_gemm_dswiglu_jax_sm100": f"{_DISCRETE_DSWIGLU}:discrete_grouped_gemm_swiglu_jax_backward",
        "discrete_grouped_gemm_dswiglu_wrapper_sm100": f"{_LEGACY2}:discrete_grouped_gemm_dswiglu_wrapper_sm100",
        "discrete_grouped_gemm_swiglu_backward": f"{_DISCRETE_DSWIGLU}:discrete_grouped_gemm_swiglu_backward",
        "discrete_grouped_gemm_swiglu_forward": f"{_DISCRETE_SWIGLU}:discrete_grouped_gemm_swiglu_forward",
        "discrete_grouped_gemm_swiglu_jax_backward": f"{_DISCRETE_DSWIGLU}:discrete_grouped_gemm_swiglu_jax_backward",
        "discrete_grouped_gemm_swiglu_jax_forward": f"{_DISCRETE_SWIGLU}:discrete_grouped_gemm_swiglu_jax_forward",
        "discrete_grouped_gemm_swiglu_jax_sm100": f"{_DISCRETE_SWIGLU}:discrete_grouped_gemm_swiglu_jax_forward",
        "discrete_grouped_gemm_swiglu_wrapper_sm100": f"{_LEGACY2}:discrete_grouped_gemm_swiglu_wrapper_sm100",
        "get_grouped_gemm_wgrad_workspace_size": f"{_WGRAD}:get_grouped_gemm_wgrad_workspace_size",
        "get_grouped_gemm_wgrad_workspace_size_sm100": f"{_WGRAD}:get_grouped_gemm_wgrad_workspace_size",
        "grouped_gemm_dglu_backward": f"{_DGLU}:grouped_gemm_glu_backward",
        "grouped_gemm_dglu_jax_sm100": f"{_DGLU}:grouped_gemm_glu_jax_backward",
        "grouped_gemm_dglu_wrapper_sm100": f"{_LEGACY}:grouped_gemm_dglu_wrapper_sm100",
        "grouped_gemm_dsrelu_jax_sm100": f"{_DSRELU}:grouped_gemm_srelu_jax_backward",
        "grouped_gemm_dsrelu_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_dsrelu_wrapper_sm100",
        "grouped_gemm_dswiglu_backward": f"{_DSWIGLU}:grouped_gemm_swiglu_backward",
        "grouped_gemm_dswiglu_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_dswiglu_wrapper_sm100",
        "grouped_gemm_forward": f"{_UNFUSED}:grouped_gemm_forward",
        "grouped_gemm_glu_backward": f"{_DGLU}:grouped_gemm_glu_backward",
        "grouped_gemm_glu_forward": f"{_GLU}:grouped_gemm_glu_forward",
        "grouped_gemm_glu_hadamard_forward": f"{_HADAMARD}:grouped_gemm_glu_hadamard_forward",
        "grouped_gemm_glu_hadamard_jax_forward": f"{_HADAMARD}:grouped_gemm_glu_hadamard_jax_forward",
        "grouped_gemm_glu_hadamard_quant_forward": f"{_HADAMARD_QUANT}:grouped_gemm_glu_hadamard_quant_forward",
        "grouped_gemm_glu_hadamard_quant_jax_forward": f"{_HADAMARD_QUANT}:grouped_gemm_glu_hadamard_quant_jax_forward",
        "grouped_gemm_glu_hadamard_quant_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_glu_hadamard_quant_wrapper_sm100",
        "grouped_gemm_glu_hadamard_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_glu_hadamard_wrapper_sm100",
        "grouped_gemm_glu_jax_backward": f"{_DGLU}:grouped_gemm_glu_jax_backward",
        "grouped_gemm_glu_jax_forward": f"{_GLU}:grouped_gemm_glu_jax_forward",
        "grouped_gemm_glu_jax_sm100": f"{_GLU}:grouped_gemm_glu_jax_forward",
        "grouped_gemm_glu_scaled_backward": f"{_DGLU}:grouped_gemm_glu_backward",
        "grouped_gemm_glu_scaled_forward": f"{_GLU}:grouped_gemm_glu_forward",
        "grouped_gemm_glu_wrapper_sm100": f"{_LEGACY}:grouped_gemm_glu_wrapper_sm100",
        "grouped_gemm_jax_forward": f"{_UNFUSED}:grouped_gemm_jax_forward",
        "grouped_gemm_jax_sm100": f"{_UNFUSED}:grouped_gemm_jax_forward",
        "grouped_gemm_quant_forward": f"{_QUANT}:grouped_gemm_quant_forward",
        "grouped_gemm_quant_jax_forward": f"{_QUANT}:grouped_gemm_quant_jax_forward",
        "grouped_gemm_quant_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_quant_wrapper_sm100",
        "grouped_gemm_srelu_backward": f"{_DSRELU}:grouped_gemm_srelu_backward",
        "grouped_gemm_srelu_forward": f"{_SRELU}:grouped_gemm_srelu_forward",
        "grouped_gemm_srelu_jax_backward": f"{_DSRELU}:grouped_gemm_srelu_jax_backward",
        "grouped_gemm_srelu_jax_forward": f"{_SRELU}:grouped_gemm_srelu_jax_forward",
        "grouped_gemm_srelu_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_srelu_wrapper_sm100",
        "grouped_gemm_swiglu_backward": f"{_DSWIGLU}:grouped_gemm_swiglu_backward",
        "grouped_gemm_swiglu_forward": f"{_SWIGLU}:grouped_gemm_swiglu_forward",
        "grouped_gemm_swiglu_jax_backward": f"{_DSWIGLU}:grouped_gemm_swiglu_jax_backward",
        "grouped_gemm_swiglu_jax_forward": f"{_SWIGLU}:grouped_gemm_swiglu_jax_forward",
        "grouped_gemm_swiglu_wrapper_sm100": f"{_LEGACY2}:grouped_gemm_swiglu_wrapper_sm100",
        "grouped_gemm_wgrad_forward": f"{_WGRAD}:grouped_gemm_wgrad_forward",
        "grouped_gemm_wgrad_jax_forward": f"{_WGRAD}:grouped_gemm_wgrad_jax_forward",
        "grouped_gemm_wgrad_jax_sm100": f"{_WGRAD}:grouped_gemm_wgrad_jax_forward",
        "grouped_gemm_wgrad_scaled_forward": f"{_WGRAD}:grouped_gemm_wgrad_forward",
        "grouped_gemm_wgrad_wrapper_sm100": f"{_LEGACY}:grouped_gemm_wgrad_wrapper_sm100",
        "grouped_gemm_wrapper_sm100": f"{_LEGACY}:grouped_gemm_wrapper_sm100",
    },
)
