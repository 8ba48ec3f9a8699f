"""The FP4 grouped GEMM with an activation that measures its Hadamard transform."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.glu_hadamard.op import FORWARD, KEYS
from cudnn_fe.grouped.glu_scaled import glu_numbers
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_common, check_result, require_given
from cudnn_fe.grouped.scaled.calls import forward_operands, forward_options, in_forms
from cudnn_fe.grouped.swiglu import SWIGLU

__all__ = ["activation_of", "grouped_gemm_glu_hadamard_forward", "grouped_gemm_glu_hadamard_jax_forward"]


def activation_of(act_func: Any, beta1: float = 4.0, beta2: float = 25.0) -> tuple[str, tuple[float, ...]]:
    """The activation and its numbers."""
    if act_func == "srelu":
        return "srelu", SWIGLU[1]
    return glu_numbers(act_func, None, 1.702, 7.0, -7.0, beta1, beta2)


def grouped_gemm_glu_hadamard_forward(
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
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    m_aligned: int = 256,
    act_func: str = "swiglu",
    situ_beta1: float = 4.0,
    situ_beta2: float = 25.0,
    use_dynamic_sched: bool = False,
    use_tmem_post_rht_amax: bool = False,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights and an activation, and per expert the largest value before and after H.

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
        d_dtype: bfloat16 (default) or float16.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        act_func: ``"swiglu"``, ``"geglu"``, ``"situglu"`` or ``"srelu"``.
        situ_beta1: Factor of situglu's gate.
        situ_beta2: Factor of situglu's up.
        use_dynamic_sched: Hint without effect on results.
        use_tmem_post_rht_amax: Hint without effect on results.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``c_tensor`` (M, N), ``d_tensor`` (M, N/2), or (M, N) of srelu, ``amax_tensor`` and ``post_rht_amax_tensor`` (L,
        1).

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    check_common(acc_dtype, cd_major, m_aligned, mma_tiler_mn, cluster_shape_mn)
    require_one_of(b_major, "b_major", ("k",))
    require_given(prob_tensor=prob_tensor)
    epilogue, numbers = activation_of(act_func, situ_beta1, situ_beta2)
    kind = check_result(d_dtype, a_tensor, fp8=(), fp4=("bfloat16", "float16"))
    rows = Rows(a_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, None, bias_tensor)
    operands, form = forward_operands(rows, Weights(b_tensor, sfb_tensor, b_ptrs, sfb_ptrs, n, b_dtype, b_major))
    options = forward_options(epilogue, c_dtype or "bfloat16", kind, sf_vec_size) + form
    results = call(FORWARD, (*operands, None), options, numbers, backend=backend, stream=current_stream)
    return TupleDict(**in_forms(a_tensor, dict(zip(KEYS, results, strict=True)), dict.fromkeys(KEYS, True)))


def grouped_gemm_glu_hadamard_jax_forward(
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
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    act_func: str = "swiglu",
    backend: str | None = None,
) -> TupleDict:
    """`grouped_gemm_glu_hadamard_forward` for JAX, usable under ``jit`` with traced offsets; dense weights, no bias.

    Args:
        a_tensor: Rows (M, K/2): uint8 FP4 pairs along K.
        b_tensor: Weights (L, N, K/2), likewise.
        sfa_tensor: Packed scales of A, any shape; uint8 is E8M0.
        sfb_tensor: Packed scales of the L matrices.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers.
        alpha_tensor: (L,) float32.
        prob_tensor: (M,) float32 or bfloat16; required.
        c_dtype: bfloat16 (default), float16, float32, E4M3 or E5M2.
        d_dtype: bfloat16 or float16.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        act_func: ``"swiglu"``, ``"geglu"``, ``"situglu"`` or ``"srelu"``.
        backend: ``None`` (best that serves) or a name.

    Returns:
        As `grouped_gemm_glu_hadamard_forward`.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return grouped_gemm_glu_hadamard_forward(
        as_jax("a_tensor", a_tensor),
        sfa_tensor,
        padded_offsets,
        alpha_tensor,
        prob_tensor,
        b_tensor,
        sfb_tensor,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        act_func=act_func,
        backend=backend,
    )
