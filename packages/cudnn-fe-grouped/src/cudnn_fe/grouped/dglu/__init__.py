"""The grouped GEMM with a gated activation's derivative: the fused half of a mixture-of-experts MLP's backward."""

from __future__ import annotations

import math
from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.hints import check_fixed
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.activation import CLAMP_MAX, CLAMP_MIN, GEGLU_ALPHA
from cudnn_fe.grouped.device_values import check_device_values
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.dglu_scaled.op import BACKWARD as SCALED
from cudnn_fe.grouped.forms import (
    all_or_none,
    as_rows,
    as_vector,
    in_form,
    is_narrow,
    require_unscaled,
    required_vector,
    weights_of,
)
from cudnn_fe.grouped.glu import offset_of
from cudnn_fe.grouped.glu.op import activation
from cudnn_fe.grouped.glu_scaled import glu_numbers
from cudnn_fe.grouped.scaled.arguments import EPILOGUES, Rows, Weights, check_common, check_result
from cudnn_fe.grouped.scaled.calls import only, run_backward
from cudnn_fe.grouped.scaled.problem import FP8
from cudnn_fe.grouped.unfused import check_unfused_hints

__all__ = ["grouped_gemm_glu_backward", "grouped_gemm_glu_jax_backward", "scalars_of"]


def scalars_of(act_func: Any, linear_offset: Any, alpha: float, high: float, low: float) -> tuple[float, ...]:
    """The op's numbers, validated."""
    if activation(act_func, "d") == "geglu":
        if not (math.isfinite(alpha) and alpha > 0):
            raise OptionError("geglu_alpha", got=repr(alpha), wanted="finite and above 0", remedy="e.g. 1.702")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise OptionError(
                "glu_clamp_min, glu_clamp_max", got=f"{low}, {high}", wanted="finite, min < max", remedy="e.g. -7, 7"
            )
    return (offset_of(act_func, linear_offset, "d"), alpha, high, low)


def _refuse_extras(activation_tensor: Any, round_dgrad: Any) -> None:
    """Raises for what belongs to the mode without scale factors."""
    extras = {"activation_tensor": activation_tensor, "round_dgrad_to_input_dtype": round_dgrad or None}
    for name, value in extras.items():
        if value is not None:
            raise OptionError(name, got="a value", wanted="its default with scale factors", remedy="leave it out")


def _check_activation(buffer: Any, a: Any, c: Any, act_func: Any, d_dtype: Any) -> None:
    if buffer is None:
        return
    kinds = spec_of(c, "c_tensor").dtype.name, str(d_dtype or "bfloat16").removeprefix("torch.")
    if framework_of(a) == "jax" or act_func != "dgeglu" or kinds != ("bfloat16", "bfloat16"):
        raise OptionError(
            "activation_tensor",
            got=f"a buffer with {act_func}, C of {kinds[0]}, D of {kinds[1]}",
            wanted="dgeglu with bfloat16 C and D, and a buffer that may be written to",
            remedy="leave it out",
        )


def grouped_gemm_glu_backward(
    a_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    beta_tensor: Any,
    prob_tensor: Any,
    dprob_tensor: Any,
    b_tensor: Any = None,
    sfb_tensor: Any = None,
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
    sf_fp8_dtype_override: Any = None,
    vector_f32: bool = False,
    m_aligned: int = 256,
    discrete_col_sfd: bool = False,
    act_func: str = "dswiglu",
    linear_offset: float | None = None,
    geglu_alpha: float = GEGLU_ALPHA,
    glu_clamp_max: float = CLAMP_MAX,
    glu_clamp_min: float = CLAMP_MIN,
    situ_beta1: float = 4.0,
    situ_beta2: float = 25.0,
    epilogue_op: Any = None,
    use_dynamic_sched: bool = False,
    use_single_group_runtime_offsets: bool = False,
    current_stream: Any = None,
    round_dgrad_to_input_dtype: bool = False,
    activation_tensor: Any = None,
    deterministic: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The gradient of the next layer's results through its weights and the gated activation before it.

    Args:
        a_tensor: dY (M, K) or (M, K, 1), contiguous: bfloat16, float16 or float32.
        c_tensor: What `grouped_gemm_glu_forward` kept, (M, 2N) with or without a unit dim.
        sfa_tensor: Scale factors of FP8 and FP4 operands, as `grouped_gemm_glu_scaled_backward` tells; else None.
        padded_offsets: (L,) int32 ends of the experts' rows.
        alpha_tensor: (L,) float32; its square multiplies the product.
        beta_tensor: (L,) float32; multiplies C.
        prob_tensor: (M,) or (M, 1, 1) float32; required.
        dprob_tensor: Buffer like ``prob_tensor`` that the gradient of prob is added to; required but for JAX, whose
            gradient starts from zero.
        b_tensor: The next layer's weights, N being their inputs: (L, N, K), (N, K, L), or with ``b_major="n"``
            (L, K, N), which is how a forward holds them.
        sfb_tensor: As ``sfa_tensor``.
        generate_dbias: Whether to return the gradient of the bias.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their scale factors, or None.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (L, K, N), and for (K, N) behind addresses.
        norm_const_tensor: (1,) float32 with results that have scale factors, else None.
        acc_dtype: float32.
        d_dtype: bfloat16 (default), float16 or float32.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale factor; 16 without.
        sf_fp8_dtype_override: None.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        discrete_col_sfd: Whether scales along columns lie expert by expert; False without.
        act_func: ``"dswiglu"`` or ``"dgeglu"``.
        linear_offset: What geglu adds to up; None is 1.
        geglu_alpha: Factor in geglu's sigmoid.
        glu_clamp_max: Upper bound of geglu's gate and up.
        glu_clamp_min: Lower bound of geglu's up.
        situ_beta1: Of ``"dsituglu"``, which operands with scale factors have too.
        situ_beta2: Likewise.
        epilogue_op: None, ``"none"`` or ``"identity"``.
        use_dynamic_sched: Hint without effect on results.
        use_single_group_runtime_offsets: False.
        current_stream: Launch stream for CUDA tensors.
        round_dgrad_to_input_dtype: Whether the product is rounded to A's dtype before the derivative.
        activation_tensor: bfloat16 buffer (M, N) for the activation computed again, with dgeglu alone, or None.
        deterministic: Changes nothing: results never depend on an order.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``d_row_tensor`` (M, 2N), ``d_col_tensor``, ``dprob_tensor``, ``dbias_tensor`` (L, 2N, 1) bfloat16 or None,
        ``amax_tensor``, ``sfd_row_tensor``, ``sfd_col_tensor``, None without scale factors, and ``activation_tensor``
        if one was given.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    del deterministic
    if is_narrow(a_tensor, "a_tensor"):
        _refuse_extras(activation_tensor, round_dgrad_to_input_dtype)
        check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn, sf_fp8_dtype_override)
        require_one_of(epilogue_op, "epilogue_op", EPILOGUES)
        epilogue, scalars = glu_numbers(
            act_func, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min, situ_beta1, situ_beta2, prefix="d"
        )
        out = run_backward(
            SCALED,
            Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor),
            c_tensor,
            beta_tensor,
            Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
            epilogue=epilogue,
            numbers=scalars,
            d_dtype=check_result(d_dtype, a_tensor, fp8=FP8),
            generate_dbias=generate_dbias,
            sf_vec_size=sf_vec_size,
            expert_columns=discrete_col_sfd,
            single_group=use_single_group_runtime_offsets,
            dprob=dprob_tensor,
            keep_dprob=dprob_tensor is not None or framework_of(a_tensor) == "jax",
            stream=current_stream,
            backend=backend,
        )
        return only(out, *SCALED.results)
    require_unscaled(
        sfa_tensor=(sfa_tensor, None),
        sfb_tensor=(sfb_tensor, None),
        sfb_ptrs=(sfb_ptrs, None),
        norm_const_tensor=(norm_const_tensor, None),
        sf_vec_size=(sf_vec_size, 16),
        sf_fp8_dtype_override=(sf_fp8_dtype_override, None),
        discrete_col_sfd=(discrete_col_sfd, False),
        use_single_group_runtime_offsets=(use_single_group_runtime_offsets, False),
    )
    if epilogue_op not in (None, "none", "identity"):
        raise OptionError(
            "epilogue_op", got=repr(epilogue_op), wanted='None, "none" or "identity"', remedy="leave it out"
        )
    jax = framework_of(a_tensor, operand="a_tensor") == "jax"
    if dprob_tensor is None and not jax:
        raise OptionError("dprob_tensor", got="None", wanted="a float32 buffer like prob", remedy="pass zeros")
    check_fixed(acc_dtype, cd_major, m_aligned)
    check_unfused_hints(mma_tiler_mn, cluster_shape_mn)
    _check_activation(activation_tensor, a_tensor, c_tensor, act_func, d_dtype)
    weights, form = weights_of(a_tensor, b_tensor, b_ptrs, n, b_dtype, b_major, canonical_n=True)
    rows, kept = as_rows(a_tensor, "a_tensor"), as_rows(c_tensor, "c_tensor")
    check_device_values(padded_offsets, rows.shape[0], b_ptrs)
    prob = required_vector(prob_tensor, "prob_tensor")
    operands = (rows, kept, weights, padded_offsets, alpha_tensor, beta_tensor, prob)
    options = (
        ("act_func", act_func),
        ("d_dtype", d_dtype or "bfloat16"),
        ("generate_dbias", generate_dbias),
        ("generate_activation", activation_tensor is not None),
        ("round_dgrad", round_dgrad_to_input_dtype),
        ("zero_tail", activation_tensor is None),
        *form,
    )
    numbers = scalars_of(act_func, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min)
    outs = all_or_none(
        None,
        as_vector(dprob_tensor, "dprob_tensor"),
        None,
        as_rows(activation_tensor, "activation_tensor", absent=True),
    )
    d, dprob, dbias, _ = call(BACKWARD, operands, options, numbers, backend=backend, stream=current_stream, outs=outs)
    results = TupleDict(
        d_row_tensor=in_form(d, a_tensor.ndim),
        d_col_tensor=None,
        dprob_tensor=in_form(dprob, prob_tensor.ndim) if dprob_tensor is None else dprob_tensor,
        dbias_tensor=dbias if generate_dbias else None,
        amax_tensor=None,
        sfd_row_tensor=None,
        sfd_col_tensor=None,
    )
    if activation_tensor is None:
        return results
    return TupleDict(**dict(results.items()), activation_tensor=activation_tensor)


def grouped_gemm_glu_jax_backward(
    a_tensor: Any,
    c_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    beta_tensor: Any,
    b_ptrs: Any = None,
    n: int | None = None,
    prob_tensor: Any = None,
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    vector_f32: bool = False,
    act_func: str = "dswiglu",
    linear_offset: float | None = None,
    generate_dbias: bool = False,
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
    b_major: str = "k",
    backend: str | None = None,
) -> Any:
    """`grouped_gemm_glu_backward` for JAX, usable under ``jit`` with traced offsets; dprob starts from zero.

    Args:
        a_tensor: dY (M, K) or (M, K, 1).
        c_tensor: What the forward kept, (M, 2N) with or without a unit dim.
        padded_offsets: (L,) int32 ends of the experts' rows.
        alpha_tensor: (L,) float32; its square multiplies the product.
        beta_tensor: (L,) float32.
        b_ptrs: Addresses of the experts' (N, K) weights, int64, or 8 uint8 each, instead of ``b_tensor``. XLA does not
            see that memory: the caller keeps it alive.
        n: N, with ``b_ptrs`` alone.
        prob_tensor: (M,) or (M, 1, 1) float32; required.
        d_dtype: bfloat16, float16 or float32.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        vector_f32: Hint without effect on results.
        act_func: ``"dswiglu"`` or ``"dgeglu"``.
        linear_offset: What geglu adds to up; None is 1.
        generate_dbias: Whether to return the gradient of the bias.
        use_dynamic_sched: Hint without effect on results.
        b_tensor: Dense weights (L, N, K), or (L, K, N) with ``b_major="n"``.
        sfa_tensor: Scale factors of FP8 and FP4 operands, as `grouped_gemm_glu_scaled_backward` tells; else None.
        sfb_tensor: Likewise.
        norm_const_tensor: (1,) float32 with results that have scale factors, else None.
        discrete_col_sfd: Whether scales along columns lie expert by expert; False without.
        geglu_alpha: Factor in geglu's sigmoid.
        glu_clamp_max: Upper bound of geglu's gate and up.
        glu_clamp_min: Lower bound of geglu's up.
        sf_vec_size: Elements per scale factor; unscaled operands have none.
        b_major: ``"k"`` or ``"n"``.
        backend: ``None`` or a name.

    Returns:
        As `grouped_gemm_glu_backward`; with ``b_ptrs`` ``(d_row, dprob, dbias)``.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out = grouped_gemm_glu_backward(
        as_jax("a_tensor", a_tensor),
        c_tensor,
        sfa_tensor,
        padded_offsets,
        alpha_tensor,
        beta_tensor,
        prob_tensor,
        None,
        b_tensor,
        sfb_tensor,
        generate_dbias,
        b_ptrs,
        n=n,
        b_dtype=None if b_ptrs is None else a_tensor.dtype,
        b_major=b_major,
        norm_const_tensor=norm_const_tensor,
        acc_dtype=acc_dtype,
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
        backend=backend,
    )
    return out if b_ptrs is None else (out["d_row_tensor"], out["dprob_tensor"], out["dbias_tensor"])
