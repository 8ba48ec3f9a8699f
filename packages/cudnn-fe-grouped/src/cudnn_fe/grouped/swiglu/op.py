"""The op record of the dense block-scaled grouped GEMM with SwiGLU; the problem is `ScaledForward`."""

from __future__ import annotations

from cudnn_fe.core.op import Op
from cudnn_fe.grouped.glu_scaled.op import FORMULA, GLU_NOTES, NUMBERS, RESULT_KEYS, C
from cudnn_fe.grouped.scaled.docs import AMAX, EXAMPLE_OPERANDS, NORM, PROB, ROWS, WEIGHTS, results
from cudnn_fe.grouped.scaled.forward import ScaledForward
from cudnn_fe.grouped.scaled.forward_spec import forward_kernels

__all__ = ["FORWARD"]

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_swiglu_forward

out = grouped_gemm_swiglu_forward(
    a, b, sfa, sfb, ends, scale, norm, ones, c_dtype="float32", d_dtype="float8_e4m3fn", sf_vec_size=32
)
np.testing.assert_allclose(out["c_tensor"][:2], wide_x[:2] @ wide_w[0].T, rtol=1e-4, atol=1e-4)
assert out["sfd_row_tensor"].shape == (1, 1, 1, 32, 4, 4)
"""
)

FORWARD = Op(
    name="grouped_gemm_swiglu_forward",
    package="cudnn-fe-grouped",
    problem=ScaledForward,
    reference="cudnn_fe.grouped.scaled.reference:scaled_forward",
    kernels=forward_kernels(len(NUMBERS)),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands with SwiGLU; dense weights, results quantised by rows and "
    "columns.",
    formula=FORMULA.replace(" + b_{ng}", ""),
    tensors=(*ROWS, *WEIGHTS, NORM, PROB, C, *results("d_tensor", "N/2"), AMAX),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; Shazeer, GLU Variants Improve Transformer (2020); names and "
    "layouts of cudnn-frontend 1.32's grouped_gemm_swiglu.",
    notes=(*GLU_NOTES[:-2], GLU_NOTES[-1]),
    results=RESULT_KEYS,
    scalars=NUMBERS,
    legacy=("grouped_gemm_swiglu_wrapper_sm100", "GroupedGemmSwigluSm100"),
    jax_name="grouped_gemm_swiglu_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:swiglu",
    gradient="cudnn_fe.grouped.scaled.gradient:GRADIENT",
)
