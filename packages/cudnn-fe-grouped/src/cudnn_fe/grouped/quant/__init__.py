"""The block-scaled grouped GEMM without activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.quant.op import FORWARD
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common, check_counter, check_result, wants_amax
from cudnn_fe.grouped.scaled.calls import run_forward
from cudnn_fe.grouped.scaled.problem import FP8

__all__ = ["grouped_gemm_quant_forward", "grouped_gemm_quant_jax_forward"]


def grouped_gemm_quant_forward(
    a_tensor: Any,
    sfa_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    b_tensor: Any = None,
    sfb_tensor: Any = None,
    bias_tensor: Any = None,
    b_ptrs: Any = None,
    sfb_ptrs: Any = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
    norm_const_tensor: Any = None,
    prob_tensor: Any = None,
    row_scale_tensor: Any = None,
    acc_dtype: Any = None,
    d_dtype: Any = None,
    d_tensor: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    sf_fp8_dtype_override: Any = None,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    use_dynamic_sched: bool = False,
    use_single_group_runtime_offsets: bool = False,
    current_stream: Any = None,
    *,
    generate_amax: bool = True,
    scheduler_counter_tensor: Any = None,
    outs: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights, scaled by expert, row scale and prob; operands and result have block scales.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs (torch's, or uint8) along K.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        b_tensor: Weights (L, N, K) or (N, K, L), same dtype; FP8 also with N contiguous.
        sfb_tensor: Packed scales of the L matrices.
        bias_tensor: (N, L) bfloat16, float16 or float32, or None.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their packed scales.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (L, K, N), and for (K, N) behind addresses.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16, or None for 1. With a bias it multiplies the bias alone.
        row_scale_tensor: (M,) float32 factors of the product, or None.
        acc_dtype: float32.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        d_tensor: Buffer for D, or None.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        sf_fp8_dtype_override: None.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        use_dynamic_sched: Hint without effect on results.
        use_single_group_runtime_offsets: Whether the one expert has all rows, whatever ``padded_offsets`` says.
        current_stream: Launch stream for CUDA tensors.
        generate_amax: Whether to return amax of a 16-bit D.
        scheduler_counter_tensor: (1,) int32 of the caller, with dense weights and ``use_dynamic_sched`` alone; not
            used.
        outs: Buffers by result key, which are written to and returned.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``d_tensor`` (M, N), ``d_col_tensor``, ``amax_tensor`` (L, 1) for a 16-bit D, ``sfd_row_tensor``,
        ``sfd_col_tensor``; None where there is none. Scales are atom views where A has three dims.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> a, b = np.ones((3, 32), ml_dtypes.float8_e4m3fn), np.ones((1, 64, 32), ml_dtypes.float8_e4m3fn)
        >>> scales, one = np.ones((1, 1, 1, 32, 4, 4), ml_dtypes.float8_e8m0fnu), np.ones(1, np.float32)
        >>> ends, prob = np.array([3], np.int32), np.ones(3, np.float32)
        >>> d, *_ = grouped_gemm_quant_forward(a, scales, ends, one, b, scales, prob_tensor=prob, sf_vec_size=32)
        >>> float(d[0, 0])
        32.0
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn, sf_fp8_dtype_override)
    check_counter(scheduler_counter_tensor, use_dynamic_sched, b_tensor)
    kind = check_result(d_dtype, a_tensor, fp8=("bfloat16", "float16", *FP8))
    buffers = dict(outs or {}) | ({} if d_tensor is None else {"d_tensor": d_tensor})
    rows = Rows(
        a_tensor,
        sfa_tensor,
        padded_offsets,
        alpha_tensor,
        prob_tensor,
        norm_const_tensor,
        bias_tensor,
        row_scale_tensor,
    )
    out = run_forward(
        FORWARD,
        rows,
        Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
        epilogue="none",
        c_dtype=None,
        d_dtype=kind,
        quantised=kind.is_fp8,
        keep_amax=generate_amax and wants_amax(kind),
        sf_vec_size=sf_vec_size,
        expert_columns=discrete_col_sfd,
        single_group=use_single_group_runtime_offsets,
        stream=current_stream,
        outs=buffers,
        backend=backend,
    )
    return TupleDict(**{key: value for key, value in out.items() if key != "c_tensor"})


def grouped_gemm_quant_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any = None,
    norm_const_tensor: Any = None,
    *,
    d_dtype: Any = "bfloat16",
    b_major: str = "k",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    discrete_col_sfd: bool = False,
    sf_vec_size: int = 32,
    generate_amax: bool = False,
    backend: str | None = None,
) -> TupleDict:
    """`grouped_gemm_quant_forward` for JAX, usable under ``jit`` with traced offsets; dense weights, no bias.

    Args:
        a_tensor: Rows (M, K): E4M3, E5M2, or uint8 FP4 pairs along K.
        b_tensor: Weights (L, N, K), or FP8 (L, K, N) with ``b_major="n"``; same encoding.
        sfa_tensor: Packed scales of A, any shape; uint8 is E8M0.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) float32 or bfloat16, or None for 1.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        b_major: ``"k"`` or ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        generate_amax: Whether to return amax of a 16-bit D.
        backend: ``None`` (best that serves) or a name.

    Returns:
        As `grouped_gemm_quant_forward`, scales in physical form.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return grouped_gemm_quant_forward(
        as_jax("a_tensor", a_tensor),
        sfa_tensor,
        padded_offsets,
        alpha_tensor,
        b_tensor,
        sfb_tensor,
        b_major=b_major,
        norm_const_tensor=norm_const_tensor,
        prob_tensor=prob_tensor,
        d_dtype=d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        generate_amax=generate_amax,
        backend=backend,
    )
