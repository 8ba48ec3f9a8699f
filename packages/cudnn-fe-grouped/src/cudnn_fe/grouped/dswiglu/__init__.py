"""The dense block-scaled grouped GEMM with the derivative of SwiGLU."""

from __future__ import annotations

import math
from typing import Any

from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.dswiglu.op import BACKWARD, KEYS
from cudnn_fe.grouped.scaled.arguments import (
    EPILOGUES,
    Rows,
    Weights,
    check_common,
    check_result,
    require_given,
    wants_amax,
)
from cudnn_fe.grouped.scaled.calls import filled, only, run_backward
from cudnn_fe.grouped.scaled.problem import FP8
from cudnn_fe.grouped.swiglu import SWIGLU

__all__ = ["grouped_gemm_swiglu_backward", "grouped_gemm_swiglu_jax_backward"]


def grouped_gemm_swiglu_backward(
    a_tensor: Any,
    b_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    beta_tensor: Any,
    prob_tensor: Any,
    norm_const_tensor: Any = None,
    acc_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    epilogue_op: Any = None,
    current_stream: Any = None,
    dprob_tensor_buf: Any = None,
    amax_tensor_buf: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The gradient of the next layer's results through its weights and SwiGLU; operands and result with block scales.

    Args:
        a_tensor: dY (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs along K.
        b_tensor: The next layer's weights, N being their inputs: (L, N, K) or (N, K, L), same dtype; FP8 also with N
            contiguous.
        c_tensor: What the forward kept, (M, 2N) with or without a unit dim: bfloat16, float16, float32, E4M3 or E5M2.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32; its square multiplies the product.
        beta_tensor: (L,) float32; multiplies C. None is 1.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        acc_dtype: float32.
        d_dtype: E4M3 or E5M2 with FP8 operands; bfloat16 (default), float16 or float32 with FP4.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        epilogue_op: None, ``"none"``, ``"identity"``, ``"relu"`` or ``"srelu"``; without effect, as documented.
        current_stream: Launch stream for CUDA tensors.
        dprob_tensor_buf: Buffer for dprob, which is overwritten, or None.
        amax_tensor_buf: (L, 2, 1) float32 buffer for amax, which is overwritten, or None.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``d_row_tensor`` (M, 2N), ``d_col_tensor``, ``dprob_tensor``, ``amax_tensor`` (L, 2, 1) of gate and up for a
        16-bit D, ``sfd_row_tensor``, ``sfd_col_tensor``; None where there is none.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    require_one_of(epilogue_op, "epilogue_op", EPILOGUES)
    kind = check_result(d_dtype, a_tensor, fp8=FP8)
    require_given(prob_tensor=prob_tensor)
    dprob = filled("dprob_tensor_buf", dprob_tensor_buf, 0.0, current_stream)
    amax = filled("amax_tensor_buf", amax_tensor_buf, -math.inf, current_stream)
    out = run_backward(
        BACKWARD,
        Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor),
        c_tensor,
        beta_tensor,
        Weights(b_tensor, sfb_tensor),
        epilogue="swiglu",
        numbers=SWIGLU[1],
        d_dtype=kind,
        sf_vec_size=sf_vec_size,
        expert_columns=discrete_col_sfd,
        dprob=dprob,
        amax=amax if wants_amax(kind) else None,
        stream=current_stream,
        backend=backend,
    )
    return only(out, *KEYS)


def grouped_gemm_swiglu_jax_backward(
    a_tensor: Any,
    b_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    beta_tensor: Any,
    prob_tensor: Any,
    norm_const_tensor: Any,
    d_dtype: Any = "float8_e4m3fn",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    discrete_col_sfd: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """`grouped_gemm_swiglu_backward` of MXFP8 operands for JAX, usable under ``jit`` with traced offsets.

    Args:
        a_tensor: dY (M, K), E4M3 or E5M2.
        b_tensor: Weights (L, N, K), same dtype.
        c_tensor: What the forward kept, (M, 2N).
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32; its square multiplies the product.
        beta_tensor: (L,) float32; multiplies C. None is 1.
        prob_tensor: (M,) float32 or bfloat16; required.
        norm_const_tensor: (1,) float32.
        d_dtype: E4M3 or E5M2.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        backend: ``None`` (best that serves) or a name.

    Returns:
        As `grouped_gemm_swiglu_backward`.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return grouped_gemm_swiglu_backward(
        as_jax("a_tensor", a_tensor),
        b_tensor,
        c_tensor,
        sfa_tensor,
        sfb_tensor,
        padded_offsets,
        alpha_tensor,
        beta_tensor,
        prob_tensor,
        norm_const_tensor,
        d_dtype=d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=32,
        discrete_col_sfd=discrete_col_sfd,
        backend=backend,
    )
