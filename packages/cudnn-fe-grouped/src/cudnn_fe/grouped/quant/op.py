"""The op record of the block-scaled grouped GEMM without activation; the problem is `ScaledForward`."""

from __future__ import annotations

from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.grouped.glu_scaled.op import RESULT_KEYS
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
from cudnn_fe.grouped import grouped_gemm_quant_forward

d, d_col, amax, sfd_row, sfd_col = grouped_gemm_quant_forward(
    a, sfa, ends, scale, b, sfb, norm_const_tensor=norm, d_dtype="float8_e4m3fn", sf_vec_size=32
)
wanted = wide_x[:2] @ wide_w[0].T
block = 2.0 ** (sfd_row.view(np.uint8).reshape(32, 4, 4)[:2, 0, :2].astype(np.float32) - 127)  # two blocks of 32 a row
np.testing.assert_allclose(d[:2].astype(np.float32) * block.repeat(32, 1), wanted, rtol=2.0**-4, atol=0.1)
"""
)

FORWARD = Op(
    name="grouped_gemm_quant_forward",
    package="cudnn-fe-grouped",
    problem=ScaledForward,
    reference="cudnn_fe.grouped.scaled.reference:scaled_forward",
    kernels=forward_kernels(0),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands, scaled by expert and by row; results quantised by rows "
    "and columns.",
    formula=r"D_{mn} = \alpha_g r_m p_m \sum_k \hat A_{mk} \hat B_{gnk}; \qquad \text{with bias } "
    r"D_{mn} = \alpha_g r_m \sum_k \hat A_{mk} \hat B_{gnk} + p_m b_{ng}",
    tensors=(
        *ROWS,
        *WEIGHTS,
        *ADDRESSES,
        BIAS,
        PROB,
        TensorRule("row_scale_tensor", "(M,)", "contiguous", ("float32",), "further factor of each row's product"),
        NORM,
        *results("d_tensor", "N"),
        AMAX,
    ),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's "
    "grouped_gemm_quant.",
    notes=(
        *NOTES,
        "With a bias, prob multiplies the bias alone, as the vendor's kernel does. `prob_tensor` may be None, which "
        "its documentation denies and its code allows.",
        "`use_single_group_runtime_offsets` gives all rows to the one expert.",
    ),
    results=RESULT_KEYS[1:],
    legacy=("grouped_gemm_quant_wrapper_sm100", "GroupedGemmQuantSm100"),
    jax_name="grouped_gemm_quant_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:quant",
    gradient="cudnn_fe.grouped.scaled.gradient:GRADIENT",
)
