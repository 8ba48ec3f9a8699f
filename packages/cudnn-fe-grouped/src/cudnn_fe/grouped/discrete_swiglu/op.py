"""The op record of the discrete block-scaled grouped GEMM with a gated activation; the problem is `ScaledForward`."""

from __future__ import annotations

from cudnn_fe.core.op import Op
from cudnn_fe.grouped.glu_scaled.op import FORMULA, GLU_NOTES, NUMBERS, RESULT_KEYS, C
from cudnn_fe.grouped.scaled.docs import ADDRESSES, AMAX, BIAS, EXAMPLE_OPERANDS, NORM, PROB, ROWS, results
from cudnn_fe.grouped.scaled.forward import ScaledForward
from cudnn_fe.grouped.scaled.forward_spec import forward_kernels

__all__ = ["FORWARD"]

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import discrete_grouped_gemm_swiglu_forward

owned = [np.ascontiguousarray(matrix) for matrix in b]  # each expert's in memory of its own
scales = [from_codes(swizzle_scales(one), "float8_e8m0fnu") for one in qw.scales]
b_ptrs, sfb_ptrs = (np.array([x.ctypes.data for x in group], np.int64) for group in (owned, scales))
out = discrete_grouped_gemm_swiglu_forward(
    a, b_ptrs, sfa, sfb_ptrs, ends, scale, 64, "float8_e4m3fn", prob_tensor=ones, norm_const_tensor=norm,
    c_dtype="float32", sf_vec_size=32,
)
np.testing.assert_allclose(out["c_tensor"][2:], wide_x[2:] @ wide_w[1].T, rtol=1e-4, atol=1e-4)
"""
)

FORWARD = Op(
    name="discrete_grouped_gemm_swiglu_forward",
    package="cudnn-fe-grouped",
    problem=ScaledForward,
    reference="cudnn_fe.grouped.scaled.reference:scaled_forward",
    kernels=forward_kernels(len(NUMBERS)),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands with SwiGLU or GeGLU; weights behind addresses, results "
    "quantised by rows and columns.",
    formula=FORMULA,
    tensors=(*ROWS, *ADDRESSES, BIAS, PROB, NORM, C, *results("d_tensor", "N/2"), AMAX),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's "
    "discrete_grouped_gemm_swiglu.",
    notes=(*GLU_NOTES, "`prob_tensor=None` is 1, and A may have two dims, beyond the vendor."),
    results=RESULT_KEYS,
    scalars=NUMBERS,
    legacy=(
        "discrete_grouped_gemm_swiglu_wrapper_sm100",
        "DiscreteGroupedGemmSwigluSm100",
        "discrete_grouped_gemm_swiglu_jax_sm100",
    ),
    jax_name="discrete_grouped_gemm_swiglu_jax_forward",
    gradient="cudnn_fe.grouped.scaled.gradient:GRADIENT",
)
