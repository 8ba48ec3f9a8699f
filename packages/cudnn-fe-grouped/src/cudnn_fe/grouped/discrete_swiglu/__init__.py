"""The block-scaled grouped GEMM with a gated activation, its weights behind addresses."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.discrete_swiglu.op import FORWARD
from cudnn_fe.grouped.glu_scaled import glu_numbers, scaled_glu
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common

__all__ = ["discrete_grouped_gemm_swiglu_forward", "discrete_grouped_gemm_swiglu_jax_forward"]


def discrete_grouped_gemm_swiglu_forward(
    a_tensor: Any,
    b_ptrs: Any,
    sfa_tensor: Any,
    sfb_ptrs: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    n: int | None,
    b_dtype: Any,
    bias_tensor: Any = None,
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
    act_func: str = "swiglu",
    b_major: str = "k",
    linear_offset: float | None = None,
    geglu_alpha: float = 1.702,
    glu_clamp_max: float = 7.0,
    glu_clamp_min: float = -7.0,
    use_dynamic_sched: bool = False,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights behind addresses, plus bias, then SwiGLU or GeGLU; with block scales.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs (torch's, or uint8) along K.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_ptrs: Addresses of their packed scales.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        n: N.
        b_dtype: Dtype of the weights, that of A.
        bias_tensor: (N, L) bfloat16, float16 or float32, or None.
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
        act_func: ``"swiglu"`` or ``"geglu"``.
        b_major: ``"k"``, or ``"n"`` for FP8 (K, N) behind the addresses.
        linear_offset: What geglu adds to up; None is 1.
        geglu_alpha: Factor in geglu's sigmoid.
        glu_clamp_max: Upper bound of geglu's gate and up.
        glu_clamp_min: Lower bound of geglu's up.
        use_dynamic_sched: Hint without effect on results.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``c_tensor`` (M, N), ``d_tensor`` (M, N/2), ``d_col_tensor``, ``amax_tensor`` (L, 1) for a 16-bit D,
        ``sfd_row_tensor``, ``sfd_col_tensor``; None where there is none. Scales are atom views where A has three dims.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    require_one_of(act_func, "act_func", ("swiglu", "geglu"))
    return scaled_glu(
        FORWARD,
        Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor, bias_tensor),
        Weights(None, None, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
        glu_numbers(act_func, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min, 4.0, 25.0),
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        stream=current_stream,
        backend=backend,
    )


def discrete_grouped_gemm_swiglu_jax_forward(
    a_tensor: Any,
    b_ptrs: Any,
    sfa_tensor: Any,
    sfb_ptrs: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any,
    norm_const_tensor: Any,
    n: int | None,
    bias_tensor: Any = None,
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 32,
    vector_f32: bool = False,
    discrete_col_sfd: bool = False,
    act_func: str = "swiglu",
    linear_offset: float | None = None,
    geglu_alpha: float = 1.702,
    glu_clamp_max: float = 7.0,
    glu_clamp_min: float = -7.0,
    use_dynamic_sched: bool = False,
    *,
    backend: str | None = None,
) -> dict[str, Any]:
    """`discrete_grouped_gemm_swiglu_forward` for JAX, usable under ``jit`` with traced offsets and addresses.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs (torch's, or uint8) along K.
        b_ptrs: Addresses of the experts' (N, K) weights, int64, or 8 uint8 each. XLA does not see that memory: the
            caller keeps it alive.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_ptrs: Likewise, of their packed scales.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16, or None for 1.
        norm_const_tensor: (1,) float32 factor of a result with scales; required for FP8 operands.
        n: N.
        bias_tensor: (N, L) bfloat16, float16 or float32, or None.
        c_dtype: bfloat16 (default), float16, float32, E4M3 or E5M2.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        act_func: ``"swiglu"`` or ``"geglu"``.
        linear_offset: What geglu adds to up; None is 1.
        geglu_alpha: Factor in geglu's sigmoid.
        glu_clamp_max: Upper bound of geglu's gate and up.
        glu_clamp_min: Lower bound of geglu's up.
        use_dynamic_sched: Hint without effect on results.
        backend: ``None`` (best that serves) or a name.

    Returns:
        A dict with the keys of `discrete_grouped_gemm_swiglu_forward`, scales in physical form.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out = discrete_grouped_gemm_swiglu_forward(
        as_jax("a_tensor", a_tensor),
        b_ptrs,
        sfa_tensor,
        sfb_ptrs,
        padded_offsets,
        alpha_tensor,
        n,
        a_tensor.dtype,
        bias_tensor,
        norm_const_tensor,
        prob_tensor,
        acc_dtype,
        c_dtype,
        d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        act_func=act_func,
        linear_offset=linear_offset,
        geglu_alpha=geglu_alpha,
        glu_clamp_max=glu_clamp_max,
        glu_clamp_min=glu_clamp_min,
        backend=backend,
    )
    return dict(out.items())
