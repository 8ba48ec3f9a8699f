"""The op record of the block-scaled derivative of a grouped GEMM with a gated activation."""

from __future__ import annotations

from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.grouped.glu_scaled.op import NUMBERS
from cudnn_fe.grouped.scaled.backward import ScaledBackward
from cudnn_fe.grouped.scaled.backward_spec import backward_kernels
from cudnn_fe.grouped.scaled.docs import ADDRESSES, EXAMPLE_OPERANDS, NORM, NOTES, PROB, ROWS, WEIGHTS, results
from cudnn_fe.grouped.scaled.problem import RESULTS

__all__ = ["AMAX", "BACKWARD", "BETA", "DBIAS", "DGLU_NOTES", "DPROB", "FORMULA", "C"]

FORMULA = (
    r"R = \alpha_g^2 \sum_k \hat A_{mk} \hat B_{gnk}, \quad G = \beta_g C_{m,\,64i+j},\; U = \beta_g C_{m,\,64i+32+j}; "
    r"\qquad D_G = p_m R\, \partial_G f, \; D_U = p_m R\, \partial_U f, \; dp_m = \sum_n R f(G, U)"
)
C = TensorRule("c_tensor", "(M, 2N) or (M, 2N, 1)", "contiguous", RESULTS, "what the forward kept")
BETA = TensorRule("beta_tensor", "(L,)", "contiguous", ("float32",), "scale of C, or None for 1")
DPROB = TensorRule("dprob_tensor", "as prob", "contiguous", ("float32",), "gradient of prob, added to the caller's")
DBIAS = TensorRule("dbias_tensor", "(L, 2N, 1)", "contiguous", ("bfloat16",), "gradient of the bias, or None")
AMAX = TensorRule("amax_tensor", "(L, 2, 1)", "contiguous", ("float32",), "max |D| of gate and of up columns, or None")
DGLU_NOTES = (
    *NOTES,
    "D of FP8 operands is FP8 with scales, columns by the recipe `epilogue_columns`; D of FP4 operands has none.",
    "alpha is squared, and dgeglu leaves C unscaled by beta, as documented of the vendor's kernels. `epilogue_op` has "
    "no effect, as there.",
    "dprob and dbias are float32 sums in a fixed order, dbias rounded once; `deterministic` changes nothing.",
)

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_glu_backward

kept = rng.standard_normal((5, 128), dtype=np.float32)  # C of the forward: twice 32 gate columns, 32 up columns
dprob = np.zeros(5, np.float32)
out = grouped_gemm_glu_backward(
    a, kept, sfa, ends, scale, scale, ones, dprob, b, sfb, norm_const_tensor=norm, sf_vec_size=32,
    d_dtype="float8_e4m3fn",
)
gate, up = np.moveaxis(kept[2:].reshape(3, 2, 2, 32), 2, 0).reshape(2, 3, 64)
r = wide_x[2:] @ wide_w[1].T
np.testing.assert_allclose(dprob[2:], (r * gate / (1 + np.exp(-gate)) * up).sum(1), rtol=1e-3, atol=1e-2)
assert out["d_row_tensor"].shape == (5, 128)
"""
)

BACKWARD = Op(
    name="grouped_gemm_glu_scaled_backward",
    package="cudnn-fe-grouped",
    problem=ScaledBackward,
    reference="cudnn_fe.grouped.scaled.reference_backward:scaled_backward",
    kernels=backward_kernels(len(NUMBERS)),
    summary="The block-scaled mode of grouped_gemm_glu_backward: MXFP8, MXFP4 or NVFP4 operands, a gradient quantised "
    "by rows and columns.",
    formula=FORMULA,
    tensors=(
        *ROWS,
        C,
        *WEIGHTS,
        *ADDRESSES,
        BETA,
        PROB,
        NORM,
        *results("d_row_tensor", "2N"),
        DPROB,
        DBIAS,
        AMAX,
    ),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's grouped_gemm_dglu.",
    notes=DGLU_NOTES,
    results=(
        "d_row_tensor",
        "d_col_tensor",
        "dprob_tensor",
        "dbias_tensor",
        "amax_tensor",
        "sfd_row_tensor",
        "sfd_col_tensor",
    ),
    scalars=NUMBERS,
    jax_name="grouped_gemm_glu_jax_backward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:dglu",
)
