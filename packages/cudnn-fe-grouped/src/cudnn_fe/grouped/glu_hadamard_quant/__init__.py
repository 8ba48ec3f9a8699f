"""The FP4 grouped GEMM with an activation, quantised to NVFP4, and its Hadamard transforms."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.glu_hadamard_quant.op import FORWARD, KEYS
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common, require_given
from cudnn_fe.grouped.scaled.calls import forward_operands, forward_options, in_forms
from cudnn_fe.grouped.scaled.problem import is_fp4

__all__ = ["grouped_gemm_glu_hadamard_quant_forward", "grouped_gemm_glu_hadamard_quant_jax_forward", "pairs_dtype"]


def pairs_dtype(given: Any, *, torch: bool) -> DType:
    """The dtype of a result, FP4 as the framework's pairs."""
    kind = dtype(given, operand="d_dtype")
    return dtype("float4_e2m1fn" if torch else "uint8") if is_fp4(kind) else kind


def grouped_gemm_glu_hadamard_quant_forward(
    a_tensor: Any,
    sfa_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any,
    b_tensor: Any = None,
    sfb_tensor: Any = None,
    b_ptrs: Any = None,
    sfb_ptrs: Any = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
    bias_tensor: Any = None,
    acc_dtype: Any = None,
    c_dtype: Any = None,
    d_dtype: Any = None,
    cd_major: str = "n",
    rht_rowwise_dtype: Any = None,
    rht_colwise_dtype: Any = None,
    glu_alpha: float | None = None,
    glu_limit: float | None = None,
    norm_const: float = 1.0,
    rht_norm_const: float = 1.0,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    sf_fp8_dtype_override: Any = None,
    vector_f32: bool = False,
    m_aligned: int = 256,
    act_func: str = "swiglu",
    use_dynamic_sched: bool = False,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights and an activation, quantised to NVFP4 or not, with Hadamard transforms of it.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1): FP4 pairs (torch's, or uint8) along K.
        sfa_tensor: Packed scales of A: physical form, atom view, or the same bytes in any shape.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) or (M, 1, 1) float32 or bfloat16; required.
        b_tensor: Weights (L, N, K) or (N, K, L), K contiguous, same encoding.
        sfb_tensor: Packed scales of the L matrices.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        sfb_ptrs: Addresses of their packed scales.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``.
        bias_tensor: (N, L) bfloat16, float16 or float32, or None.
        acc_dtype: float32.
        c_dtype: bfloat16 (default), float16, float32, E4M3 or E5M2.
        d_dtype: bfloat16 (default) or FP4.
        cd_major: ``"n"``.
        rht_rowwise_dtype: None, bfloat16 or FP4: of the copy transformed along columns.
        rht_colwise_dtype: None or FP4: of the copy transformed along each expert's rows, which are whole 64 then.
        glu_alpha: Factor of swiglu and geglu, or None for 1.
        glu_limit: Bound of gate and up, or None.
        norm_const: Factor of a quantised D.
        rht_norm_const: Factor of quantised transforms.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        sf_fp8_dtype_override: None.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        act_func: ``"swiglu"``, ``"geglu"`` or ``"srelu"``.
        use_dynamic_sched: Hint without effect on results.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``c_tensor``, ``d_tensor``, ``sfd_tensor``, ``rht_rowwise_tensor``, ``sfrht_rowwise_tensor``,
        ``rht_colwise_tensor``, ``sfrht_colwise_tensor``; None where there is none. FP4 comes as torch's pairs, or as
        uint8 pairs.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn, sf_fp8_dtype_override)
    require_one_of(b_major, "b_major", ("k",))
    require_one_of(act_func, "act_func", ("swiglu", "geglu", "srelu"))
    require_given(prob_tensor=prob_tensor)
    torch = framework_of(a_tensor, operand="a_tensor") == "torch"
    kind = pairs_dtype(d_dtype or "bfloat16", torch=torch)
    rows = Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, None, bias_tensor)
    operands, form = forward_operands(rows, Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major))
    by_row, by_column = (
        None if given is None else pairs_dtype(given, torch=torch).name
        for given in (rht_rowwise_dtype, rht_colwise_dtype)
    )
    options = forward_options(
        act_func,
        c_dtype or "bfloat16",
        kind,
        sf_vec_size,
        keep_amax=False,
        rht_rowwise_dtype=by_row,
        rht_colwise_dtype=by_column,
        glu_alpha=glu_alpha,
        glu_limit=glu_limit,
    )
    numbers = (norm_const, rht_norm_const)
    results = call(FORWARD, operands, options + form, numbers, backend=backend, stream=current_stream)
    wanted = (
        True,
        True,
        is_fp4(kind),
        by_row is not None,
        by_row not in (None, "bfloat16"),
        *[by_column is not None] * 2,
    )
    return TupleDict(**in_forms(a_tensor, dict(zip(KEYS, results, strict=True)), dict(zip(KEYS, wanted, strict=True))))


def grouped_gemm_glu_hadamard_quant_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    prob_tensor: Any,
    *,
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "bfloat16",
    rht_rowwise_dtype: Any = None,
    rht_colwise_dtype: Any = None,
    norm_const: float = 1.0,
    rht_norm_const: float = 1.0,
    glu_alpha: float | None = None,
    glu_limit: float | None = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    act_func: str = "swiglu",
    backend: str | None = None,
) -> TupleDict:
    """`grouped_gemm_glu_hadamard_quant_forward` for JAX, usable under ``jit``; dense weights, no bias.

    Args:
        a_tensor: Rows (M, K/2): uint8 FP4 pairs along K.
        b_tensor: Weights (L, N, K/2), likewise.
        sfa_tensor: Packed scales of A, any shape; uint8 is E8M0.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) float32 or bfloat16; required.
        c_dtype: bfloat16 (default), float16, float32, E4M3 or E5M2.
        d_dtype: bfloat16 (default) or FP4.
        rht_rowwise_dtype: None, bfloat16 or FP4: of the copy transformed along columns.
        rht_colwise_dtype: None or FP4: of the copy transformed along each expert's rows, which are whole 64 then.
        norm_const: Factor of a quantised D.
        rht_norm_const: Factor of quantised transforms.
        glu_alpha: Factor of swiglu and geglu, or None for 1.
        glu_limit: Bound of gate and up, or None.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        act_func: ``"swiglu"``, ``"geglu"`` or ``"srelu"``.
        backend: ``None`` (best that serves) or a name.

    Returns:
        As `grouped_gemm_glu_hadamard_quant_forward`, FP4 as uint8 pairs.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return grouped_gemm_glu_hadamard_quant_forward(
        as_jax("a_tensor", a_tensor),
        sfa_tensor,
        padded_offsets,
        alpha_tensor,
        prob_tensor,
        b_tensor,
        sfb_tensor,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        rht_rowwise_dtype=rht_rowwise_dtype,
        rht_colwise_dtype=rht_colwise_dtype,
        glu_alpha=glu_alpha,
        glu_limit=glu_limit,
        norm_const=norm_const,
        rht_norm_const=rht_norm_const,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        act_func=act_func,
        backend=backend,
    )
