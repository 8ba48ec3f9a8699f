"""The grouped GEMM with a gated activation: the first half of a mixture-of-experts MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.hints import check_fixed, check_tiles
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.activation import CLAMP_MAX, CLAMP_MIN, GEGLU_ALPHA
from cudnn_fe.grouped.device_values import check_device_values
from cudnn_fe.grouped.forms import Buffers, as_rows, in_form, is_narrow, require_unscaled, required_vector, weights_of
from cudnn_fe.grouped.glu.op import FORWARD, activation
from cudnn_fe.grouped.glu_scaled import glu_numbers, scaled_glu
from cudnn_fe.grouped.glu_scaled.op import SCALED
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common, check_counter

__all__ = ["check_glu_hints", "grouped_gemm_glu_forward", "grouped_gemm_glu_jax_forward", "offset_of"]


def check_glu_hints(mma_tiler_mn: Any, cluster_shape_mn: Any) -> None:
    """Raises OptionError unless tile and cluster are documented."""
    check_tiles(mma_tiler_mn, cluster_shape_mn, range(64, 257, 64), "a multiple of 64 up to 256")


def offset_of(act_func: Any, linear_offset: float | None, prefix: str = "") -> float:
    """``linear_offset``, or the activation's own where it is None."""
    own = 1.0 if activation(act_func, prefix) == "geglu" else 0.0
    return own if linear_offset is None else linear_offset


def grouped_gemm_glu_forward(
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
    linear_offset: float | None = None,
    geglu_alpha: float = GEGLU_ALPHA,
    glu_clamp_max: float = CLAMP_MAX,
    glu_clamp_min: float = CLAMP_MIN,
    situ_beta1: float = 4.0,
    situ_beta2: float = 25.0,
    use_dynamic_sched: bool = False,
    use_single_group_runtime_offsets: bool = False,
    current_stream: Any = None,
    generate_c: bool = False,
    sf_fp8_dtype_override: Any = None,
    *,
    scheduler_counter_tensor: Any = None,
    outs: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights, plus bias, then a gated activation times the row's prob.

    Differentiable under torch autograd and JAX, in A, B, alpha, prob and bias.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1), contiguous, experts one after another: bfloat16, float16 or float32.
        sfa_tensor: Scale factors of FP8 and FP4 operands, as `grouped_gemm_glu_scaled_forward` tells; else None.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers. Rows past the last are neither
            read nor written.
        alpha_tensor: (L,) float32.
        b_tensor: Weights (L, N, K), or (N, K, L) with strides (K, 1, N K); rows 0-31 of every 64 give the gate, rows
            32-63 what it gates.
        sfb_tensor: As ``sfa_tensor``.
        bias_tensor: (N, L), or None.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their scale factors, or None.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (K, N) behind addresses.
        norm_const_tensor: (1,) float32 with results that have scale factors, else None.
        prob_tensor: (M,) or (M, 1, 1) float32; required.
        acc_dtype: float32.
        c_dtype: bfloat16 (default), float16 or float32.
        d_dtype: Likewise.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale factor; 16 without.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        discrete_col_sfd: Whether scales along columns lie expert by expert; False without.
        act_func: ``"swiglu"`` or ``"geglu"``.
        linear_offset: What geglu adds to up; None is 1.
        geglu_alpha: 1.702.
        glu_clamp_max: 7.
        glu_clamp_min: -7.
        situ_beta1: Of ``"situglu"``, which operands with scale factors have too.
        situ_beta2: Likewise.
        use_dynamic_sched: Hint without effect on results.
        use_single_group_runtime_offsets: False.
        current_stream: Launch stream for CUDA tensors.
        generate_c: Whether to return C, which the explicit backward reads.
        sf_fp8_dtype_override: None.
        scheduler_counter_tensor: None.
        outs: Buffers by result key, which are written to and returned. They carry no gradient.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``c_tensor`` (M, N) (None without ``generate_c``) and ``d_tensor`` (M, N/2), with A's unit dim; then
        ``d_col_tensor``, ``amax_tensor``, ``sfd_row_tensor``, ``sfd_col_tensor``, all None without scale factors.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    if is_narrow(a_tensor, "a_tensor"):
        check_counter(scheduler_counter_tensor, use_dynamic_sched, b_tensor)
        check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn, sf_fp8_dtype_override)
        numbers = glu_numbers(
            act_func, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min, situ_beta1, situ_beta2
        )
        return scaled_glu(
            SCALED,
            Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor, bias_tensor),
            Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
            numbers,
            c_dtype=c_dtype,
            d_dtype=d_dtype,
            sf_vec_size=sf_vec_size,
            discrete_col_sfd=discrete_col_sfd,
            single_group=use_single_group_runtime_offsets,
            stream=current_stream,
            outs=outs,
            backend=backend,
        )
    require_unscaled(
        sfa_tensor=(sfa_tensor, None),
        sfb_tensor=(sfb_tensor, None),
        sfb_ptrs=(sfb_ptrs, None),
        norm_const_tensor=(norm_const_tensor, None),
        sf_vec_size=(sf_vec_size, 16),
        discrete_col_sfd=(discrete_col_sfd, False),
        geglu_alpha=(geglu_alpha, GEGLU_ALPHA),
        glu_clamp_max=(glu_clamp_max, CLAMP_MAX),
        glu_clamp_min=(glu_clamp_min, CLAMP_MIN),
        use_single_group_runtime_offsets=(use_single_group_runtime_offsets, False),
        sf_fp8_dtype_override=(sf_fp8_dtype_override, None),
        scheduler_counter_tensor=(scheduler_counter_tensor, None),
    )
    check_fixed(acc_dtype, cd_major, m_aligned)
    check_glu_hints(mma_tiler_mn, cluster_shape_mn)
    weights, form = weights_of(a_tensor, b_tensor, b_ptrs, n, b_dtype, b_major, canonical_n=False)
    rows, prob = as_rows(a_tensor, "a_tensor"), required_vector(prob_tensor, "prob_tensor")
    check_device_values(padded_offsets, rows.shape[0], b_ptrs)
    operands = (rows, weights, padded_offsets, alpha_tensor, prob, bias_tensor)
    buffers = Buffers(outs, "d_tensor", "c_tensor" if generate_c else "")
    options = (
        ("act_func", act_func),
        ("d_dtype", d_dtype or "bfloat16"),
        ("c_dtype", c_dtype or "bfloat16"),
        ("generate_c", generate_c),
        ("zero_tail", buffers.rows is None),
        *form,
    )
    scalars = (offset_of(act_func, linear_offset),)
    d, c = call(FORWARD, operands, options, scalars, backend=backend, stream=current_stream, outs=buffers.rows)
    return buffers.results(
        c_tensor=in_form(c, a_tensor.ndim) if generate_c else None,
        d_tensor=in_form(d, a_tensor.ndim),
        d_col_tensor=None,
        amax_tensor=None,
        sfd_row_tensor=None,
        sfd_col_tensor=None,
    )


def grouped_gemm_glu_jax_forward(
    a_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    b_ptrs: Any = None,
    n: int | None = None,
    prob_tensor: Any = None,
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    vector_f32: bool = False,
    act_func: str = "swiglu",
    linear_offset: float | None = None,
    generate_c: bool = False,
    use_dynamic_sched: bool = False,
    *,
    b_tensor: Any = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    norm_const_tensor: Any = None,
    discrete_col_sfd: bool = False,
    geglu_alpha: float = GEGLU_ALPHA,
    glu_clamp_max: float = CLAMP_MAX,
    glu_clamp_min: float = CLAMP_MIN,
    sf_vec_size: int = 32,
    bias_tensor: Any = None,
    backend: str | None = None,
) -> Any:
    """`grouped_gemm_glu_forward` for JAX: usable under ``jit`` with traced offsets, ``grad`` and ``vmap``.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1).
        padded_offsets: (L,) int32 ends of the experts' rows.
        alpha_tensor: (L,) float32.
        b_ptrs: Addresses of the experts' (N, K) weights, int64, or 8 uint8 each, instead of ``b_tensor``. XLA does not
            see that memory: the caller keeps it alive.
        n: N, with ``b_ptrs`` alone.
        prob_tensor: (M,) or (M, 1, 1) float32; required.
        c_dtype: bfloat16, float16 or float32.
        d_dtype: Likewise.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        vector_f32: Hint without effect on results.
        act_func: ``"swiglu"`` or ``"geglu"``.
        linear_offset: What geglu adds to up; None is 1.
        generate_c: Whether to return C.
        use_dynamic_sched: Hint without effect on results.
        b_tensor: Dense weights (L, N, K).
        sfa_tensor: Scale factors of FP8 and FP4 operands, as `grouped_gemm_glu_scaled_forward` tells; else None.
        sfb_tensor: Likewise.
        norm_const_tensor: (1,) float32 with results that have scale factors, else None.
        discrete_col_sfd: Whether scales along columns lie expert by expert; False without.
        geglu_alpha: 1.702.
        glu_clamp_max: 7.
        glu_clamp_min: -7.
        sf_vec_size: Elements per scale factor; unscaled operands have none.
        bias_tensor: (N, L) or None.
        backend: ``None`` or a name.

    Returns:
        As `grouped_gemm_glu_forward`; with ``b_ptrs`` ``(d, c)``, c None without ``generate_c``.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out = grouped_gemm_glu_forward(
        as_jax("a_tensor", a_tensor),
        sfa_tensor,
        padded_offsets,
        alpha_tensor,
        b_tensor,
        sfb_tensor,
        bias_tensor,
        b_ptrs,
        n=n,
        b_dtype=None if b_ptrs is None else a_tensor.dtype,
        norm_const_tensor=norm_const_tensor,
        prob_tensor=prob_tensor,
        acc_dtype=acc_dtype,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        vector_f32=vector_f32,
        sf_vec_size=16 if sfa_tensor is None else sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        act_func=act_func,
        linear_offset=linear_offset,
        geglu_alpha=geglu_alpha,
        glu_clamp_max=glu_clamp_max,
        glu_clamp_min=glu_clamp_min,
        use_dynamic_sched=use_dynamic_sched,
        generate_c=generate_c,
        backend=backend,
    )
    return out if b_ptrs is None else (out["d_tensor"], out["c_tensor"])
