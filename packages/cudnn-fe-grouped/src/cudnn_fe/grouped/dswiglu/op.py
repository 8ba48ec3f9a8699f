"""The op record of the dense block-scaled derivative of a grouped GEMM with SwiGLU."""

from __future__ import annotations

from cudnn_fe.core.op import Op
from cudnn_fe.grouped.dglu_scaled.op import AMAX, BETA, DGLU_NOTES, DPROB, FORMULA, C
from cudnn_fe.grouped.glu_scaled.op import NUMBERS
from cudnn_fe.grouped.scaled.backward import ScaledBackward
from cudnn_fe.grouped.scaled.backward_spec import backward_kernels
from cudnn_fe.grouped.scaled.docs import EXAMPLE_OPERANDS, NORM, PROB, ROWS, WEIGHTS, results

__all__ = ["BACKWARD", "KEYS"]

KEYS = ("d_row_tensor", "d_col_tensor", "dprob_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor")
EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_swiglu_backward

kept = rng.standard_normal((5, 128), dtype=np.float32)  # C of the forward: twice 32 gate columns, 32 up columns
out = grouped_gemm_swiglu_backward(
    a, b, kept, sfa, sfb, ends, scale, None, ones, norm, d_dtype="float8_e4m3fn", sf_vec_size=32
)
gate, up = np.moveaxis(kept[2:].reshape(3, 2, 2, 32), 2, 0).reshape(2, 3, 64)
wanted = ((wide_x[2:] @ wide_w[1].T) * gate / (1 + np.exp(-gate)) * up).sum(1)
np.testing.assert_allclose(out["dprob_tensor"][2:], wanted, rtol=1e-3, atol=1e-2)
"""
)

BACKWARD = Op(
    name="grouped_gemm_swiglu_backward",
    package="cudnn-fe-grouped",
    problem=ScaledBackward,
    reference="cudnn_fe.grouped.scaled.reference_backward:scaled_backward",
    kernels=backward_kernels(len(NUMBERS)),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands with the derivative of SwiGLU; dense weights.",
    formula=FORMULA,
    tensors=(*ROWS, C, *WEIGHTS, BETA, PROB, NORM, *results("d_row_tensor", "2N"), DPROB, AMAX),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's "
    "grouped_gemm_dswiglu.",
    notes=(
        *DGLU_NOTES,
        "`dprob_tensor_buf` and `amax_tensor_buf` are overwritten; the vendor shares one uninitialised amax between "
        "calls.",
    ),
    results=KEYS,
    scalars=NUMBERS,
    legacy=("grouped_gemm_dswiglu_wrapper_sm100", "GroupedGemmDswigluSm100", "grouped_gemm_dswiglu_backward"),
    jax_name="grouped_gemm_swiglu_jax_backward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:dswiglu",
)
