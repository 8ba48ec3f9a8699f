"""The op record of the block-scaled derivative of a grouped GEMM with squared ReLU."""

from __future__ import annotations

from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.grouped.scaled.backward import ScaledBackward
from cudnn_fe.grouped.scaled.backward_spec import backward_kernels
from cudnn_fe.grouped.scaled.docs import ADDRESSES, AMAX, EXAMPLE_OPERANDS, NORM, NOTES, PROB, ROWS, WEIGHTS, results
from cudnn_fe.grouped.scaled.problem import RESULTS

__all__ = ["BACKWARD"]

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_srelu_backward

kept = rng.standard_normal((5, 64), dtype=np.float32)  # C of the forward
out = grouped_gemm_srelu_backward(
    a, b, kept, sfa, sfb, ends, scale, ones, norm_const_tensor=norm, d_dtype="float8_e4m3fn", sf_vec_size=32
)
wanted = ((wide_x[2:] @ wide_w[1].T) * np.maximum(kept[2:], 0) ** 2).sum(1)
np.testing.assert_allclose(out["dprob_tensor"][2:], wanted, rtol=1e-3, atol=1e-2)
"""
)

BACKWARD = Op(
    name="grouped_gemm_srelu_backward",
    package="cudnn-fe-grouped",
    problem=ScaledBackward,
    reference="cudnn_fe.grouped.scaled.reference_backward:scaled_backward",
    kernels=backward_kernels(0),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands with the derivative of squared ReLU, and the activation "
    "again.",
    formula=r"R = \alpha_g \sum_k \hat A_{mk} \hat B_{gnk}, \quad r = \max(C_{mn}, 0), \quad D_{mn} = 2 p_m r R, "
    r"\quad dp_m = \sum_n r^2 R, \quad S_{mn} = r^2 p_m",
    tensors=(
        *ROWS,
        TensorRule("c_tensor", "(M, N) or (M, N, 1)", "contiguous", RESULTS, "what the forward kept"),
        *WEIGHTS,
        *ADDRESSES,
        PROB,
        NORM,
        *results("d_row_tensor", "N"),
        TensorRule(
            "d_srelu_tensor", "(M, N)", "contiguous", RESULTS, "the activation S, by columns where it has scales"
        ),
        TensorRule("sfd_col_d_srelu_tensor", "N rows", "packed", ("float8_e8m0fnu",), "its scales along M, or None"),
        TensorRule("dprob_tensor", "as prob", "contiguous", ("float32",), "gradient of prob, added to the caller's"),
        TensorRule("dbias_tensor", "(L, N, 1)", "contiguous", ("bfloat16",), "gradient of the bias, or None"),
        AMAX,
    ),
    example=EXAMPLE,
    source="Derivative of grouped_gemm_srelu_forward; names and layouts of cudnn-frontend 1.32's grouped_gemm_dsrelu.",
    notes=(
        *NOTES,
        "D of FP8 operands is FP8 with scales, columns by the recipe `epilogue_columns`; D of FP4 operands has none.",
        "alpha enters to the first power, unlike in the gated derivatives. NaN stays NaN; the vendor makes it 0.",
        "dprob and dbias are float32 sums in a fixed order, dbias rounded once; `deterministic` changes nothing, and "
        "the class takes no workspaces for it.",
    ),
    results=(
        "d_row_tensor",
        "d_col_tensor",
        "d_srelu_tensor",
        "dprob_tensor",
        "dbias_tensor",
        "amax_tensor",
        "sfd_row_tensor",
        "sfd_col_tensor",
        "sfd_col_d_srelu_tensor",
    ),
    legacy=("grouped_gemm_dsrelu_wrapper_sm100", "GroupedGemmDsreluSm100", "grouped_gemm_dsrelu_jax_sm100"),
    jax_name="grouped_gemm_srelu_jax_backward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:dsrelu",
)
