"""The family's legacy functions: the new ones under their old names. The classes stand in `classes`."""

from __future__ import annotations

from cudnn_fe.core.legacy import make_alias
from cudnn_fe.grouped.dglu import grouped_gemm_glu_backward
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.unfused import grouped_gemm_forward
from cudnn_fe.grouped.wgrad import grouped_gemm_wgrad_forward

__all__ = [
    "grouped_gemm_dglu_wrapper_sm100",
    "grouped_gemm_glu_wrapper_sm100",
    "grouped_gemm_wgrad_wrapper_sm100",
    "grouped_gemm_wrapper_sm100",
]


_BOTH = ("canonical_layouts", "bf16_canonical_layouts")

grouped_gemm_wrapper_sm100 = make_alias(
    "grouped_gemm_wrapper_sm100", grouped_gemm_forward, __name__, ("bf16_canonical_layouts",)
)
grouped_gemm_glu_wrapper_sm100 = make_alias(
    "grouped_gemm_glu_wrapper_sm100", grouped_gemm_glu_forward, __name__, (*_BOTH, "external_scheduler_counter")
)
grouped_gemm_dglu_wrapper_sm100 = make_alias(
    "grouped_gemm_dglu_wrapper_sm100", grouped_gemm_glu_backward, __name__, _BOTH
)
grouped_gemm_wgrad_wrapper_sm100 = make_alias(
    "grouped_gemm_wgrad_wrapper_sm100", grouped_gemm_wgrad_forward, __name__, _BOTH
)
