"""The block-scaled legacy functions: the new ones under their old names. The classes stand in `classes_scaled`."""

from __future__ import annotations

from cudnn_fe.core.legacy import make_alias
from cudnn_fe.grouped.discrete_dswiglu import discrete_grouped_gemm_swiglu_backward
from cudnn_fe.grouped.discrete_swiglu import discrete_grouped_gemm_swiglu_forward
from cudnn_fe.grouped.dsrelu import grouped_gemm_srelu_backward
from cudnn_fe.grouped.dswiglu import grouped_gemm_swiglu_backward
from cudnn_fe.grouped.glu_hadamard import grouped_gemm_glu_hadamard_forward
from cudnn_fe.grouped.glu_hadamard_quant import grouped_gemm_glu_hadamard_quant_forward
from cudnn_fe.grouped.quant import grouped_gemm_quant_forward
from cudnn_fe.grouped.srelu import grouped_gemm_srelu_forward
from cudnn_fe.grouped.swiglu import grouped_gemm_swiglu_forward

__all__ = [
    "discrete_grouped_gemm_dswiglu_wrapper_sm100",
    "discrete_grouped_gemm_swiglu_wrapper_sm100",
    "grouped_gemm_dsrelu_wrapper_sm100",
    "grouped_gemm_dswiglu_wrapper_sm100",
    "grouped_gemm_glu_hadamard_quant_wrapper_sm100",
    "grouped_gemm_glu_hadamard_wrapper_sm100",
    "grouped_gemm_quant_wrapper_sm100",
    "grouped_gemm_srelu_wrapper_sm100",
    "grouped_gemm_swiglu_wrapper_sm100",
]

_QUANT = ("canonical_layouts", "optional_amax", "external_scheduler_counter")

discrete_grouped_gemm_swiglu_wrapper_sm100 = make_alias(
    "discrete_grouped_gemm_swiglu_wrapper_sm100", discrete_grouped_gemm_swiglu_forward, __name__
)
grouped_gemm_quant_wrapper_sm100 = make_alias(
    "grouped_gemm_quant_wrapper_sm100", grouped_gemm_quant_forward, __name__, _QUANT
)
grouped_gemm_srelu_wrapper_sm100 = make_alias("grouped_gemm_srelu_wrapper_sm100", grouped_gemm_srelu_forward, __name__)
grouped_gemm_swiglu_wrapper_sm100 = make_alias(
    "grouped_gemm_swiglu_wrapper_sm100", grouped_gemm_swiglu_forward, __name__
)
discrete_grouped_gemm_dswiglu_wrapper_sm100 = make_alias(
    "discrete_grouped_gemm_dswiglu_wrapper_sm100", discrete_grouped_gemm_swiglu_backward, __name__
)
grouped_gemm_dsrelu_wrapper_sm100 = make_alias(
    "grouped_gemm_dsrelu_wrapper_sm100", grouped_gemm_srelu_backward, __name__
)
grouped_gemm_dswiglu_wrapper_sm100 = make_alias(
    "grouped_gemm_dswiglu_wrapper_sm100", grouped_gemm_swiglu_backward, __name__
)
grouped_gemm_glu_hadamard_wrapper_sm100 = make_alias(
    "grouped_gemm_glu_hadamard_wrapper_sm100", grouped_gemm_glu_hadamard_forward, __name__, ("canonical_layouts",)
)
grouped_gemm_glu_hadamard_quant_wrapper_sm100 = make_alias(
    "grouped_gemm_glu_hadamard_quant_wrapper_sm100", grouped_gemm_glu_hadamard_quant_forward, __name__
)
