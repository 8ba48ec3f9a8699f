"""Grouped GEMMs of mixture-of-experts layers for torch, JAX and NumPy."""

from cudnn_fe.grouped._version import __version__
from cudnn_fe.grouped.dglu import grouped_gemm_glu_backward, grouped_gemm_glu_jax_backward
from cudnn_fe.grouped.discrete_dswiglu import (
    discrete_grouped_gemm_swiglu_backward,
    discrete_grouped_gemm_swiglu_jax_backward,
)
from cudnn_fe.grouped.discrete_swiglu import (
    discrete_grouped_gemm_swiglu_forward,
    discrete_grouped_gemm_swiglu_jax_forward,
)
from cudnn_fe.grouped.dsrelu import grouped_gemm_srelu_backward, grouped_gemm_srelu_jax_backward
from cudnn_fe.grouped.dswiglu import grouped_gemm_swiglu_backward, grouped_gemm_swiglu_jax_backward
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward, grouped_gemm_glu_jax_forward
from cudnn_fe.grouped.glu_hadamard import grouped_gemm_glu_hadamard_forward, grouped_gemm_glu_hadamard_jax_forward
from cudnn_fe.grouped.glu_hadamard_quant import (
    grouped_gemm_glu_hadamard_quant_forward,
    grouped_gemm_glu_hadamard_quant_jax_forward,
)
from cudnn_fe.grouped.prepared import PreparedGroupedGemm, prepare_grouped_gemm
from cudnn_fe.grouped.quant import grouped_gemm_quant_forward, grouped_gemm_quant_jax_forward
from cudnn_fe.grouped.srelu import grouped_gemm_srelu_forward, grouped_gemm_srelu_jax_forward
from cudnn_fe.grouped.swiglu import grouped_gemm_swiglu_forward, grouped_gemm_swiglu_jax_forward
from cudnn_fe.grouped.unfused import grouped_gemm_forward, grouped_gemm_jax_forward
from cudnn_fe.grouped.wgrad import (
    WGradInputOrder,
    get_grouped_gemm_wgrad_workspace_size,
    grouped_gemm_wgrad_forward,
    grouped_gemm_wgrad_jax_forward,
)

__all__ = [
    "PreparedGroupedGemm",
    "WGradInputOrder",
    "__version__",
    "discrete_grouped_gemm_swiglu_backward",
    "discrete_grouped_gemm_swiglu_forward",
    "discrete_grouped_gemm_swiglu_jax_backward",
    "discrete_grouped_gemm_swiglu_jax_forward",
    "get_grouped_gemm_wgrad_workspace_size",
    "grouped_gemm_forward",
    "grouped_gemm_glu_backward",
    "grouped_gemm_glu_forward",
    "grouped_gemm_glu_hadamard_forward",
    "grouped_gemm_glu_hadamard_jax_forward",
    "grouped_gemm_glu_hadamard_quant_forward",
    "grouped_gemm_glu_hadamard_quant_jax_forward",
    "grouped_gemm_glu_jax_backward",
    "grouped_gemm_glu_jax_forward",
    "grouped_gemm_jax_forward",
    "grouped_gemm_quant_forward",
    "grouped_gemm_quant_jax_forward",
    "grouped_gemm_srelu_backward",
    "grouped_gemm_srelu_forward",
    "grouped_gemm_srelu_jax_backward",
    "grouped_gemm_srelu_jax_forward",
    "grouped_gemm_swiglu_backward",
    "grouped_gemm_swiglu_forward",
    "grouped_gemm_swiglu_jax_backward",
    "grouped_gemm_swiglu_jax_forward",
    "grouped_gemm_wgrad_forward",
    "grouped_gemm_wgrad_jax_forward",
    "prepare_grouped_gemm",
]
