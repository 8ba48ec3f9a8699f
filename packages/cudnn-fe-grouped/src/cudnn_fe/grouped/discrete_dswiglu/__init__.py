"""The block-scaled grouped GEMM with a gated activation's derivative, its weights behind addresses."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.block_scale import scale_shape
from cudnn_fe.core.codecs import from_codes
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.discrete_dswiglu.op import BACKWARD, KEYS
from cudnn_fe.grouped.glu_scaled import glu_numbers
from cudnn_fe.grouped.scaled.arguments import EPILOGUES, Rows, Weights, check_common, check_result, require_given
from cudnn_fe.grouped.scaled.calls import only, run_backward
from cudnn_fe.grouped.scaled.problem import FP8

__all__ = ["discrete_grouped_gemm_swiglu_backward", "discrete_grouped_gemm_swiglu_jax_backward"]


def discrete_grouped_gemm_swiglu_backward(
    a_tensor: Any,
    b_ptrs: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    sfb_ptrs: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    beta_tensor: Any,
    prob_tensor: Any,
    dprob_tensor: Any,
    n: int | None,
    b_dtype: Any,
    generate_dbias: bool = False,
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
    act_func: str = "dswiglu",
    b_major: str = "k",
    epilogue_op: Any = None,
    use_dynamic_sched: bool = False,
    linear_offset: float | None = None,
    geglu_alpha: float = 1.702,
    glu_clamp_max: float = 7.0,
    glu_clamp_min: float = -7.0,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The gradient of the next layer's results through its weights behind addresses and SwiGLU or GeGLU.

    Args:
        a_tensor: dY (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs along K.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights.
        c_tensor: What the forward kept, (M, 2N) with or without a unit dim: bfloat16, float16, float32, E4M3 or E5M2.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_ptrs: Addresses of their packed scales.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32; its square multiplies the product.
        beta_tensor: (L,) float32; multiplies C in dswiglu, as documented.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
        dprob_tensor: Buffer like ``prob_tensor`` that the gradient of prob is added to; required but for JAX.
        n: N, the inputs of the next layer.
        b_dtype: Dtype of the weights, that of A.
        generate_dbias: Whether to return the gradient of the bias.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        acc_dtype: float32.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        act_func: ``"dswiglu"`` or ``"dgeglu"``.
        b_major: ``"k"``, or ``"n"`` for FP8 (K, N) behind the addresses.
        epilogue_op: None, ``"none"``, ``"identity"``, ``"relu"`` or ``"srelu"``; without effect, as documented.
        use_dynamic_sched: Hint without effect on results.
        linear_offset: What geglu adds to up; None is 1.
        geglu_alpha: Factor in geglu's sigmoid.
        glu_clamp_max: Upper bound of geglu's gate and up.
        glu_clamp_min: Lower bound of geglu's up.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``d_row_tensor`` (M, 2N), ``d_col_tensor``, ``dprob_tensor``, ``dbias_tensor`` (L, 2N, 1) bfloat16,
        ``amax_tensor`` (L, 2, 1) of gate and up for a 16-bit D, ``sfd_row_tensor``, ``sfd_col_tensor``; None where
        there is none.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    require_one_of(epilogue_op, "epilogue_op", EPILOGUES)
    require_one_of(act_func, "act_func", ("dswiglu", "dgeglu"))
    kind = check_result(d_dtype, a_tensor, fp8=("bfloat16", "float16", *FP8))
    require_given(prob_tensor=prob_tensor)
    if framework_of(a_tensor, operand="a_tensor") != "jax":
        require_given(dprob_tensor=dprob_tensor)
    epilogue, numbers = glu_numbers(
        act_func, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min, 4.0, 25.0, prefix="d"
    )
    out = run_backward(
        BACKWARD,
        Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, norm_const_tensor),
        c_tensor,
        beta_tensor,
        Weights(None, None, b_ptrs, sfb_ptrs, n, b_dtype, b_major),
        epilogue=epilogue,
        numbers=numbers,
        d_dtype=kind,
        generate_dbias=generate_dbias,
        sf_vec_size=sf_vec_size,
        expert_columns=discrete_col_sfd,
        dprob=dprob_tensor,
        stream=current_stream,
        backend=backend,
    )
    return only(out, *KEYS)


def discrete_grouped_gemm_swiglu_jax_backward(
    a_tensor: Any,
    b_ptrs: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    sfb_ptrs: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    beta_tensor: Any,
    prob_tensor: Any,
    norm_const_tensor: Any,
    n: int | None,
    generate_dbias: bool = False,
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 32,
    vector_f32: bool = False,
    discrete_col_sfd: bool = False,
    act_func: str = "dswiglu",
    epilogue_op: Any = None,
    linear_offset: float | None = None,
    geglu_alpha: float = 1.702,
    glu_clamp_max: float = 7.0,
    glu_clamp_min: float = -7.0,
    use_dynamic_sched: bool = False,
    *,
    backend: str | None = None,
) -> dict[str, Any]:
    """`discrete_grouped_gemm_swiglu_backward` for JAX, usable under ``jit``; dprob starts from zero.

    Args:
        a_tensor: dY (M, K) or (M, K, 1): E4M3, E5M2, or FP4 pairs along K.
        b_ptrs: Addresses of the experts' (N, K) weights, int64, or 8 uint8 each. XLA does not see that memory: the
            caller keeps it alive.
        c_tensor: What the forward kept, (M, 2N) with or without a unit dim: bfloat16, float16, float32, E4M3 or E5M2.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        sfb_ptrs: Likewise, of their packed scales.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32; its square multiplies the product.
        beta_tensor: (L,) float32; multiplies C in dswiglu, as documented.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
        norm_const_tensor: (1,) float32 factor of an FP8 D, or None.
        n: N, the inputs of the next layer.
        generate_dbias: Whether to return the gradient of the bias.
        d_dtype: bfloat16 (default), float16; with FP8 operands E4M3 or E5M2; with FP4 operands float32.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        discrete_col_sfd: Whether the column scales are packed expert by expert, whose ends are multiples of 128 then.
        act_func: ``"dswiglu"`` or ``"dgeglu"``.
        epilogue_op: None, ``"none"``, ``"identity"``, ``"relu"`` or ``"srelu"``; without effect, as documented.
        linear_offset: What geglu adds to up; None is 1.
        geglu_alpha: Factor in geglu's sigmoid.
        glu_clamp_max: Upper bound of geglu's gate and up.
        glu_clamp_min: Lower bound of geglu's up.
        use_dynamic_sched: Hint without effect on results.
        backend: ``None`` (best that serves) or a name.

    Returns:
        A dict with the keys of `discrete_grouped_gemm_swiglu_backward`; for a D without scales ``d_col_tensor`` and the
        scales are zeros, as documented.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out = discrete_grouped_gemm_swiglu_backward(
        as_jax("a_tensor", a_tensor),
        b_ptrs,
        c_tensor,
        sfa_tensor,
        sfb_ptrs,
        padded_offsets,
        alpha_tensor,
        beta_tensor,
        prob_tensor,
        None,
        n,
        a_tensor.dtype,
        generate_dbias,
        norm_const_tensor,
        acc_dtype,
        d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        discrete_col_sfd=discrete_col_sfd,
        act_func=act_func,
        epilogue_op=epilogue_op,
        linear_offset=linear_offset,
        geglu_alpha=geglu_alpha,
        glu_clamp_max=glu_clamp_max,
        glu_clamp_min=glu_clamp_min,
        backend=backend,
    )
    return dict(out.items()) | _unwritten(out, sf_vec_size)


def _unwritten(out: TupleDict, block: int) -> dict[str, Any]:
    """Zeros for what a D without scales leaves unwritten."""
    import jax.numpy as jnp

    d = out["d_row_tensor"]
    if out["sfd_row_tensor"] is not None:
        return {}
    m, width = d.shape[:2]
    shapes = {
        "sfd_row_tensor": scale_shape(m, -(-width // block)),
        "sfd_col_tensor": scale_shape(width, -(-m // block)),
    }
    zero = {name: from_codes(jnp.zeros(shape, "uint8"), "float8_e8m0fnu") for name, shape in shapes.items()}
    return {"d_col_tensor": jnp.zeros_like(d)} | zero
