"""The op record of the block-scaled grouped GEMM with squared ReLU; the problem is `ScaledForward`."""

from __future__ import annotations

from cudnn_fe.core.op import Op
from cudnn_fe.grouped.glu_scaled.op import RESULT_KEYS, C
from cudnn_fe.grouped.scaled.docs import (
    ADDRESSES,
    AMAX,
    BIAS,
    EXAMPLE_OPERANDS,
    NORM,
    NOTES,
    PROB,
    ROWS,
    WEIGHTS,
    results,
)
from cudnn_fe.grouped.scaled.forward import ScaledForward
from cudnn_fe.grouped.scaled.forward_spec import forward_kernels

__all__ = ["FORWARD"]

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_srelu_forward

out = grouped_gemm_srelu_forward(a, b, sfa, sfb, ends, scale, prob_tensor=ones, c_dtype="float32", sf_vec_size=32)
pre = wide_x[:2] @ wide_w[0].T
np.testing.assert_allclose(out["c_tensor"][:2], pre, rtol=1e-4, atol=1e-4)
np.testing.assert_allclose(out["d_tensor"][:2].astype(np.float32), np.maximum(pre, 0) ** 2, rtol=2e-2, atol=1e-2)
"""
)

FORWARD = Op(
    name="grouped_gemm_srelu_forward",
    package="cudnn-fe-grouped",
    problem=ScaledForward,
    reference="cudnn_fe.grouped.scaled.reference:scaled_forward",
    kernels=forward_kernels(0),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands with squared ReLU, bounded or not; results quantised by "
    "rows and columns.",
    formula=r"C_{mn} = \alpha_g \sum_k \hat A_{mk} \hat B_{gnk} + b_{ng}, \quad D_{mn} = \max(C_{mn}, 0)^2\, p_m; "
    r"\qquad \text{bounded } D_{mn} = (s \tanh(\max(C_{mn}, 0) / s))^2\, p_m",
    tensors=(*ROWS, *WEIGHTS, *ADDRESSES, BIAS, PROB, NORM, C, *results("d_tensor", "N"), AMAX),
    example=EXAMPLE,
    source="So et al., Primer (2021) for squared ReLU; OCP Microscaling (MX) v1.0 for the operands; names and layouts "
    "of cudnn-frontend 1.32's grouped_gemm_srelu.",
    notes=(
        *NOTES,
        "The activation reads the unrounded sums. NaN stays NaN; the vendor makes it 0. An FP8 D has scales; C is a "
        "plain cast.",
    ),
    results=RESULT_KEYS,
    legacy=("grouped_gemm_srelu_wrapper_sm100", "GroupedGemmSreluSm100"),
    jax_name="grouped_gemm_srelu_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:srelu",
    gradient="cudnn_fe.grouped.scaled.gradient:GRADIENT",
)
