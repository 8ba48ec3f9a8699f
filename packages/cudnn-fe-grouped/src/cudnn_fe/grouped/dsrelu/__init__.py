"""The block-scaled grouped GEMM with the derivative of squared ReLU."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.dsrelu.op import BACKWARD
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common, check_result, require_given
from cudnn_fe.grouped.scaled.calls import run_backward
from cudnn_fe.grouped.scaled.problem import FP8

__all__ = ["grouped_gemm_srelu_backward", "grouped_gemm_srelu_jax_backward"]


def grouped_gemm_srelu_backward(
    a_tensor: Any,
    b_tensor: Any = None,
    c_tensor: Any = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    padded_offsets: Any = None,
    alpha_tensor: Any = None,
    prob_tensor: Any = None,
    dprob_tensor: Any = None,
    generate_dbias: bool = False,
    b_ptrs: Any = None,
    sfb_ptrs: Any = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
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
    use_dynamic_sched: bool = False,
    use_dsrelu_reuse: bool = False,
    deterministic: Any = None,
    tanh_clamp_scale: float | None = None,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The gradient of the next layer's results through its weights and squared ReLU; with block scales.

    Args:
        a_tensor: dY (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs along K.
        b_tensor: The next layer's weights, N being their inputs: (L, N, K) or (N, K, L), same dtype; FP8 also with N
            contiguous.
        c_tensor: What the forward kept, (M, N) with or without a unit dim: bfloat16, float16, float32, E4M3 or E5M2.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
        dprob_tensor: Buffer like ``prob_tensor`` that the gradient of prob is added to; None gives a fresh one.
        generate_dbias: Whether to return the gradient of the bias.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their packed scales.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (L, K, N), and for (K, N) behind addresses.
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
        use_dynamic_sched: Hint without effect on results.
        use_dsrelu_reuse: Hint without effect on results.
        deterministic: Results never depend on an order.
        tanh_clamp_scale: The forward's.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``d_row_tensor`` (M, N), ``d_col_tensor``, ``d_srelu_tensor`` (M, N), the activation again (by columns where it
        has scales), ``dprob_tensor``, ``dbias_tensor`` (L, N, 1) bfloat16, ``amax_tensor`` (L, 1) for a 16-bit D,
        ``sfd_row_tensor``, ``sfd_col_tensor``, ``sfd_col_d_srelu_tensor``; None where there is none.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    del deterministic
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    kind = check_result(d_dtype, a_tensor, fp8=FP8)
    require_given(prob_tensor=prob_tensor)
    return run_backward(
        BACKWARD,
        Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor),
        c_tensor,
        None,
        Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
        epilogue="srelu",
        d_dtype=kind,
        generate_dbias=generate_dbias,
        sf_vec_size=sf_vec_size,
        expert_columns=discrete_col_sfd,
        tanh_clamp_scale=tanh_clamp_scale,
        dprob=dprob_tensor,
        stream=current_stream,
        backend=backend,
    )


def grouped_gemm_srelu_jax_backward(
    a_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any,
    b_ptrs: Any = None,
    sfb_ptrs: Any = None,
    n: int | None = None,
    norm_const_tensor: Any = None,
    b_dtype: Any = None,
    b_major: str = "k",
    d_dtype: Any = "float8_e4m3fn",
    acc_dtype: Any = "float32",
    generate_dbias: bool = False,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 32,
    vector_f32: bool = False,
    discrete_col_sfd: bool = False,
    use_dynamic_sched: bool = False,
    use_dsrelu_reuse: bool = False,
    *,
    b_tensor: Any = None,
    sfb_tensor: Any = None,
    backend: str | None = None,
) -> Any:
    """`grouped_gemm_srelu_backward` for JAX, usable under ``jit`` with traced offsets; dprob starts from zero.

    Args:
        a_tensor: dY (M, K) or (M, K, 1): E4M3, E5M2, or uint8 FP4 pairs along K.
        c_tensor: What the forward kept, (M, N) with or without a unit dim: bfloat16, float16, float32, E4M3 or E5M2.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their packed scales.
        n: N, with ``b_ptrs`` alone.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (L, K, N), and for (K, N) behind addresses.
        d_dtype: E4M3 or E5M2 with FP8 operands; bfloat16, float16 or float32 with FP4.
        acc_dtype: float32.
        generate_dbias: Whether to return the gradient of the bias.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        use_dynamic_sched: Hint without effect on results.
        use_dsrelu_reuse: Hint without effect on results.
        b_tensor: Weights (L, N, K), same encoding.
        sfb_tensor: Packed scales of the L matrices.
        backend: ``None`` (best that serves) or a name.

    Returns:
        As `grouped_gemm_srelu_backward`; with ``b_ptrs`` a tuple of the values.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out = grouped_gemm_srelu_backward(
        as_jax("a_tensor", a_tensor),
        b_tensor,
        c_tensor,
        sfa_tensor,
        sfb_tensor,
        padded_offsets,
        alpha_tensor,
        prob_tensor,
        None,
        generate_dbias,
        b_ptrs,
        sfb_ptrs,
        n,
        a_tensor.dtype if b_ptrs is not None and b_dtype is None else b_dtype,
        b_major,
        norm_const_tensor,
        acc_dtype,
        d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        backend=backend,
    )
    return out if b_ptrs is None else tuple(out)
