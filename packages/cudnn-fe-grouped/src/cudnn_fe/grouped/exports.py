"""What this family announces to ``cudnn``: public names, legacy names, and its ops."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

_UNFUSED, _GLU, _DGLU, _WGRAD = (f"cudnn_fe.grouped.{name}" for name in ("unfused", "glu", "dglu", "wgrad"))
_LEGACY, _CLASSES = "cudnn_fe.grouped.legacy", "cudnn_fe.grouped.classes"

FAMILY = Family(
    name="grouped",
    package="cudnn-fe-grouped",
    op_targets=(f"{_UNFUSED}.op:FORWARD", f"{_GLU}.op:FORWARD", f"{_DGLU}.op:BACKWARD", f"{_WGRAD}.op:WGRAD"),
    exports={
        "GroupedGemmDgluSm100": f"{_CLASSES}:GroupedGemmDgluSm100",
        "GroupedGemmGluSm100": f"{_CLASSES}:GroupedGemmGluSm100",
        "GroupedGemmSm100": f"{_CLASSES}:GroupedGemmSm100",
        "GroupedGemmWgradSm100": f"{_CLASSES}:GroupedGemmWgradSm100",
        "WGradInputOrder": f"{_WGRAD}:WGradInputOrder",
        "get_grouped_gemm_wgrad_workspace_size": f"{_WGRAD}:get_grouped_gemm_wgrad_workspace_size",
        "get_grouped_gemm_wgrad_workspace_size_sm100": f"{_WGRAD}:get_grouped_gemm_wgrad_workspace_size",
        "grouped_gemm_dglu_backward": f"{_DGLU}:grouped_gemm_glu_backward",
        "grouped_gemm_dglu_jax_sm100": f"{_DGLU}:grouped_gemm_glu_jax_backward",
        "grouped_gemm_dglu_wrapper_sm100": f"{_LEGACY}:grouped_gemm_dglu_wrapper_sm100",
        "grouped_gemm_forward": f"{_UNFUSED}:grouped_gemm_forward",
        "grouped_gemm_glu_backward": f"{_DGLU}:grouped_gemm_glu_backward",
        "grouped_gemm_glu_forward": f"{_GLU}:grouped_gemm_glu_forward",
        "grouped_gemm_glu_jax_backward": f"{_DGLU}:grouped_gemm_glu_jax_backward",
        "grouped_gemm_glu_jax_forward": f"{_GLU}:grouped_gemm_glu_jax_forward",
        "grouped_gemm_glu_jax_sm100": f"{_GLU}:grouped_gemm_glu_jax_forward",
        "grouped_gemm_glu_wrapper_sm100": f"{_LEGACY}:grouped_gemm_glu_wrapper_sm100",
        "grouped_gemm_jax_forward": f"{_UNFUSED}:grouped_gemm_jax_forward",
        "grouped_gemm_jax_sm100": f"{_UNFUSED}:grouped_gemm_jax_forward",
        "grouped_gemm_wgrad_forward": f"{_WGRAD}:grouped_gemm_wgrad_forward",
        "grouped_gemm_wgrad_jax_forward": f"{_WGRAD}:grouped_gemm_wgrad_jax_forward",
        "grouped_gemm_wgrad_jax_sm100": f"{_WGRAD}:grouped_gemm_wgrad_jax_forward",
        "grouped_gemm_wgrad_wrapper_sm100": f"{_LEGACY}:grouped_gemm_wgrad_wrapper_sm100",
        "grouped_gemm_wrapper_sm100": f"{_LEGACY}:grouped_gemm_wrapper_sm100",
    },
)
