"""The dense block-scaled grouped GEMM with SwiGLU."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.glu_scaled import glu_numbers, scaled_glu
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common
from cudnn_fe.grouped.swiglu.op import FORWARD

__all__ = ["SWIGLU", "grouped_gemm_swiglu_forward", "grouped_gemm_swiglu_jax_forward"]

SWIGLU = glu_numbers("swiglu", None, 1.702, 7.0, -7.0, 4.0, 25.0)


def grouped_gemm_swiglu_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    norm_const_tensor: Any = None,
    prob_tensor: Any = None,
    acc_dtype: Any = None,
    c_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights, then SwiGLU times the row's prob; operands and result with block scales.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs (torch's, or uint8) along K.
        b_tensor: Weights (L, N, K) or (N, K, L), same dtype; rows 0-31 of every 64 give the gate, rows 32-63 what it
            gates.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        norm_const_tensor: (1,) float32 factor of a result with scales; required for FP8 operands.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16, or None for 1.
        acc_dtype: float32.
        c_dtype: bfloat16 (default), float16, float32, E4M3 or E5M2.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``c_tensor`` (M, N), ``d_tensor`` (M, N/2), ``d_col_tensor``, ``amax_tensor`` (L, 1) for a 16-bit D,
        ``sfd_row_tensor``, ``sfd_col_tensor``; None where there is none. Scales are atom views where A has three dims.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> a, b = np.ones((3, 32), ml_dtypes.float8_e4m3fn), np.ones((1, 64, 32), ml_dtypes.float8_e4m3fn)
        >>> scales, one = np.ones((1, 1, 1, 32, 4, 4), ml_dtypes.float8_e8m0fnu), np.ones(1, np.float32)
        >>> out = grouped_gemm_swiglu_forward(a, b, scales, scales, np.array([3], np.int32), one, one,
        ...                                   d_dtype="float8_e4m3fn", sf_vec_size=32)
        >>> out["c_tensor"][0, 0], out["d_tensor"].shape, out["amax_tensor"] is None
        (32, (3, 32), True)
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    return scaled_glu(
        FORWARD,
        Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor),
        Weights(b_tensor, sfb_tensor),
        SWIGLU,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        stream=current_stream,
        backend=backend,
    )


def grouped_gemm_swiglu_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any,
    norm_const_tensor: Any,
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "float8_e4m3fn",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    discrete_col_sfd: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """`grouped_gemm_swiglu_forward` of MXFP8 operands for JAX, usable under ``jit`` with traced offsets.

    Args:
        a_tensor: Rows (M, K), E4M3 or E5M2.
        b_tensor: Weights (L, N, K), same dtype.
        sfa_tensor: Packed scales of A, E8M0 or its bytes.
        sfb_tensor: Packed scales of the weights.
        padded_offsets: (L,) int32 ends of the experts' rows.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) float32 or bfloat16, or None for 1.
        norm_const_tensor: (1,) float32.
        c_dtype: bfloat16, float16, float32, E4M3 or E5M2.
        d_dtype: E4M3, E5M2, or a 16-bit dtype.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert.
        backend: ``None`` or a name.

    Returns:
        As `grouped_gemm_swiglu_forward`.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return grouped_gemm_swiglu_forward(
        as_jax("a_tensor", a_tensor),
        b_tensor,
        sfa_tensor,
        sfb_tensor,
        padded_offsets,
        alpha_tensor,
        norm_const_tensor,
        prob_tensor,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=32,
        discrete_col_sfd=discrete_col_sfd,
        backend=backend,
    )
