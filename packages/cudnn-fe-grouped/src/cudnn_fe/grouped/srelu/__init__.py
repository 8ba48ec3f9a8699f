"""The block-scaled grouped GEMM with squared ReLU."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common, check_result, require_given, wants_amax
from cudnn_fe.grouped.scaled.calls import run_forward
from cudnn_fe.grouped.scaled.problem import FP8
from cudnn_fe.grouped.srelu.op import FORWARD

__all__ = ["grouped_gemm_srelu_forward", "grouped_gemm_srelu_jax_forward"]


def grouped_gemm_srelu_forward(
    a_tensor: Any,
    b_tensor: Any = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    padded_offsets: Any = None,
    alpha_tensor: Any = None,
    bias_tensor: Any = None,
    b_ptrs: Any = None,
    sfb_ptrs: Any = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
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
    use_dynamic_sched: bool = False,
    tanh_clamp_scale: float | None = None,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights, plus bias, then squared ReLU times the row's prob; with block scales.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs (torch's, or uint8) along K.
        b_tensor: Weights (L, N, K) or (N, K, L), same dtype; FP8 also with N contiguous.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        bias_tensor: (N, L) bfloat16, float16 or float32, or None.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their packed scales.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (L, K, N), and for (K, N) behind addresses.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
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
        use_dynamic_sched: Hint without effect on results.
        tanh_clamp_scale: None, or s for ``(s tanh(relu(x) / s))**2``.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``c_tensor`` and ``d_tensor`` (M, N), ``d_col_tensor``, ``amax_tensor`` (L, 1) for a 16-bit D,
        ``sfd_row_tensor``, ``sfd_col_tensor``; None where there is none. Scales are atom views where A has three dims.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> a, b = np.ones((3, 32), ml_dtypes.float8_e4m3fn), np.ones((1, 64, 32), ml_dtypes.float8_e4m3fn)
        >>> scales, one = np.ones((1, 1, 1, 32, 4, 4), ml_dtypes.float8_e8m0fnu), np.ones(1, np.float32)
        >>> out = grouped_gemm_srelu_forward(a, b, scales, scales, np.array([3], np.int32), one,
        ...                                  prob_tensor=np.ones(3, np.float32), sf_vec_size=32)
        >>> float(out["d_tensor"][0, 0]), out["amax_tensor"].tolist()
        (1024.0, [[1024.0]])
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    kind = check_result(d_dtype, a_tensor, fp8=("bfloat16", "float16", *FP8))
    require_given(prob_tensor=prob_tensor)
    return run_forward(
        FORWARD,
        Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor, bias_tensor),
        Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
        epilogue="srelu",
        c_dtype=c_dtype or "bfloat16",
        d_dtype=kind,
        quantised=kind.is_fp8,
        keep_amax=wants_amax(kind),
        sf_vec_size=sf_vec_size,
        expert_columns=discrete_col_sfd,
        tanh_clamp_scale=tanh_clamp_scale,
        stream=current_stream,
        backend=backend,
    )


def grouped_gemm_srelu_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any,
    norm_const_tensor: Any = None,
    *,
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "bfloat16",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    discrete_col_sfd: bool = False,
    sf_vec_size: int = 32,
    tanh_clamp_scale: float | None = None,
    backend: str | None = None,
) -> TupleDict:
    """`grouped_gemm_srelu_forward` for JAX, usable under ``jit`` with traced offsets; dense weights, no bias.

    Args:
        a_tensor: Rows (M, K): E4M3, E5M2, or uint8 FP4 pairs along K.
        b_tensor: Weights (L, N, K), same encoding.
        sfa_tensor: Packed scales of A, any shape; uint8 is E8M0.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) float32 or bfloat16; required.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        c_dtype: bfloat16 (default), float16, float32, E4M3 or E5M2.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        tanh_clamp_scale: None, or s for ``(s tanh(relu(x) / s))**2``.
        backend: ``None`` (best that serves) or a name.

    Returns:
        As `grouped_gemm_srelu_forward`, scales in physical form.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return grouped_gemm_srelu_forward(
        as_jax("a_tensor", a_tensor),
        b_tensor,
        sfa_tensor,
        sfb_tensor,
        padded_offsets,
        alpha_tensor,
        norm_const_tensor=norm_const_tensor,
        prob_tensor=prob_tensor,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        tanh_clamp_scale=tanh_clamp_scale,
        backend=backend,
    )
