"""The op record of the discrete block-scaled derivative of a grouped GEMM with a gated activation."""

from __future__ import annotations

from cudnn_fe.core.op import Op
from cudnn_fe.grouped.dglu_scaled.op import AMAX, BETA, DBIAS, DGLU_NOTES, DPROB, FORMULA, C
from cudnn_fe.grouped.glu_scaled.op import NUMBERS
from cudnn_fe.grouped.scaled.backward import ScaledBackward
from cudnn_fe.grouped.scaled.backward_spec import backward_kernels
from cudnn_fe.grouped.scaled.docs import ADDRESSES, EXAMPLE_OPERANDS, NORM, PROB, ROWS, results

__all__ = ["BACKWARD", "KEYS"]

KEYS = (
    "d_row_tensor",
    "d_col_tensor",
    "dprob_tensor",
    "dbias_tensor",
    "amax_tensor",
    "sfd_row_tensor",
    "sfd_col_tensor",
)

EXAMPLE = (
    EXAMPLE_OPERANDS
    + """\
from cudnn_fe.grouped import discrete_grouped_gemm_swiglu_backward

owned = [np.ascontiguousarray(matrix) for matrix in b]  # each expert's in memory of its own
scales = [from_codes(swizzle_scales(one), "float8_e8m0fnu") for one in qw.scales]
b_ptrs, sfb_ptrs = (np.array([x.ctypes.data for x in group], np.int64) for group in (owned, scales))
kept, dprob = rng.standard_normal((5, 128), dtype=np.float32), np.zeros(5, np.float32)
out = discrete_grouped_gemm_swiglu_backward(
    a, b_ptrs, kept, sfa, sfb_ptrs, ends, scale, scale, ones, dprob, 64, "float8_e4m3fn", sf_vec_size=32
)
gate, up = np.moveaxis(kept[2:].reshape(3, 2, 2, 32), 2, 0).reshape(2, 3, 64)
wanted = ((wide_x[2:] @ wide_w[1].T) * gate / (1 + np.exp(-gate)) * up).sum(1)
np.testing.assert_allclose(dprob[2:], wanted, rtol=1e-3, atol=1e-2)
assert out["amax_tensor"].shape == (2, 2, 1)
"""
)

BACKWARD = Op(
    name="discrete_grouped_gemm_swiglu_backward",
    package="cudnn-fe-grouped",
    problem=ScaledBackward,
    reference="cudnn_fe.grouped.scaled.reference_backward:scaled_backward",
    kernels=backward_kernels(len(NUMBERS)),
    summary="Grouped GEMM of MXFP8, MXFP4 or NVFP4 operands with the derivative of SwiGLU or GeGLU; weights behind "
    "addresses.",
    formula=FORMULA,
    tensors=(*ROWS, C, *ADDRESSES, BETA, PROB, NORM, *results("d_row_tensor", "2N"), DPROB, DBIAS, AMAX),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's "
    "discrete_grouped_gemm_dswiglu.",
    notes=(*DGLU_NOTES, "A 16-bit D of FP8 operands is a plain cast with amax here, as documented."),
    results=KEYS,
    scalars=NUMBERS,
    legacy=(
        "discrete_grouped_gemm_dswiglu_wrapper_sm100",
        "DiscreteGroupedGemmDswigluSm100",
        "discrete_grouped_gemm_dswiglu_jax_sm100",
    ),
    jax_name="discrete_grouped_gemm_swiglu_jax_backward",
)
