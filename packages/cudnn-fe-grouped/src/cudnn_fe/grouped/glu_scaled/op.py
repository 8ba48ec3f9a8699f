"""The contract of the grouped GEMM with a gated activation of quantised operands; the problem is `ScaledForward`."""

from __future__ import annotations

from cudnn_fe.core.op import Op, TensorRule
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
from cudnn_fe.grouped.scaled.problem import RESULTS

__all__ = ["FORMULA", "GLU_NOTES", "NUMBERS", "RESULT_KEYS", "SCALED", "C"]

FORMULA = (
    r"C_{mn} = \alpha_g \sum_k \hat A_{mk} \hat B_{gnk} + b_{ng}, \quad G = C_{m,\,64i+j},\; U = C_{m,\,64i+32+j}, "
    r"\qquad D_{m,\,32i+j} = f(G, U)\, p_m"
)
NUMBERS = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min", "situ_beta1", "situ_beta2")
RESULT_KEYS = ("c_tensor", "d_tensor", "d_col_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor")
C = TensorRule("c_tensor", "(M, N)", "contiguous", RESULTS, "before the activation; FP8 is a plain saturating cast")
GLU_NOTES = (
    *NOTES,
    "swiglu: sigmoid(G) G U. geglu: the same of G bounded by 7 from above and U by -7 and 7, with sigmoid(1.702 G) and "
    "U + 1; the four numbers are arguments. situglu: beta1 tanh(G / beta1) sigmoid(G) beta2 tanh(U / beta2).",
    "D of FP8 operands has scales whatever its dtype, as the vendor documents: a 16-bit D holds value * norm_const / "
    "scale, scaled to at most 1, and comes with amax of the value. D of FP4 operands has none, and no D by columns.",
)

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_glu_forward

out = grouped_gemm_glu_forward(
    a, sfa, ends, scale, b, sfb, prob_tensor=ones, norm_const_tensor=norm, sf_vec_size=32,
    c_dtype="float32", d_dtype="float8_e4m3fn",
)
gate, up = np.split(wide_x[2:] @ wide_w[1].T, 2, axis=1)
wanted = gate / (1 + np.exp(-gate)) * up
scales = out["sfd_row_tensor"].view(np.uint8).reshape(32, 4, 4)[:5, 0, 0]  # one per row of 32 columns
found = out["d_tensor"].astype(np.float32) * 2.0 ** (scales[:, None].astype(np.float32) - 127)
assert np.abs(found[2:] - wanted).max() <= 2.0**-4 * np.abs(wanted).max()
"""
)

SCALED = Op(
    name="grouped_gemm_glu_scaled_forward",
    package="cudnn-fe-grouped",
    problem=ScaledForward,
    reference="cudnn_fe.grouped.scaled.reference:scaled_forward",
    kernels=forward_kernels(len(NUMBERS)),
    summary="The block-scaled mode of grouped_gemm_glu_forward: MXFP8, MXFP4 or NVFP4 operands, results quantised by "
    "rows and columns.",
    formula=FORMULA,
    tensors=(*ROWS, *WEIGHTS, *ADDRESSES, BIAS, PROB, NORM, C, *results("d_tensor", "N/2"), AMAX),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's grouped_gemm_glu.",
    notes=GLU_NOTES,
    results=RESULT_KEYS,
    scalars=NUMBERS,
    jax_name="grouped_gemm_glu_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:glu",
    gradient="cudnn_fe.grouped.scaled.gradient:GRADIENT",
)
