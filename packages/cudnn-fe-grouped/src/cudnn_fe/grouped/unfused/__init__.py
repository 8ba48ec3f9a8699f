"""The unfused grouped GEMM: each row of a buffer times its expert's weights."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.hints import check_fixed, check_tiles
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.device_values import check_device_values
from cudnn_fe.grouped.forms import all_or_none, as_rows, in_form, required_vector, weights_of
from cudnn_fe.grouped.unfused.op import FORWARD

__all__ = ["check_unfused_hints", "grouped_gemm_forward", "grouped_gemm_jax_forward"]


def check_unfused_hints(mma_tiler_mn: Any, cluster_shape_mn: Any) -> None:
    """Raises OptionError unless tile and cluster are documented."""
    check_tiles(mma_tiler_mn, cluster_shape_mn, range(32, 257, 32), "a multiple of 32 up to 256")


def grouped_gemm_forward(
    a_tensor: Any,
    padded_offsets: Any,
    alpha_tensor: Any,
    b_tensor: Any = None,
    bias_tensor: Any = None,
    b_ptrs: Any = None,
    n: int | None = None,
    b_dtype: Any = None,
    b_major: str = "k",
    prob_tensor: Any = None,
    acc_dtype: Any = None,
    c_dtype: Any = None,
    d_dtype: Any = None,
    c_tensor: Any = None,
    d_tensor: Any = None,
    cd_major: str = "n",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    vector_f32: bool = False,
    m_aligned: int = 256,
    generate_c: bool = False,
    use_dynamic_sched: bool = False,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Each row times its expert's weights, scaled by expert (alpha) and row (prob).

    Differentiable under torch autograd and JAX, in A, B, alpha, prob and bias.

    Args:
        a_tensor: Rows (M, K) or (M, K, 1), contiguous, experts one after another: bfloat16, float16 or float32.
        padded_offsets: (L,) int32 ends of the experts' rows: any non-decreasing numbers. Rows past the last are neither
            read nor written.
        alpha_tensor: (L,) float32.
        b_tensor: Weights (L, N, K), or (N, K, L) with strides (K, 1, N K), or (L, K, N) with ``b_major="n"``.
        bias_tensor: (N, L), or None. prob multiplies the bias and not the product then.
        b_ptrs: (L,) int64 addresses of the experts' own (N, K) weights, instead of ``b_tensor``.
        n: N, with ``b_ptrs`` alone.
        b_dtype: Dtype, with ``b_ptrs`` alone.
        b_major: ``"k"``, or ``"n"`` for (L, K, N), and for (K, N) behind addresses.
        prob_tensor: (M,) or (M, 1, 1) float32; required.
        acc_dtype: float32.
        c_dtype: bfloat16 (default), float16 or float32.
        d_dtype: Likewise.
        c_tensor: Buffer for C, or None. Buffers carry no gradient.
        d_tensor: Buffer for D, or None.
        cd_major: ``"n"``.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        vector_f32: Hint without effect on results.
        m_aligned: 256; groups of other sizes are served all the same.
        generate_c: Whether to return C, the result before prob.
        use_dynamic_sched: Hint without effect on results.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``d_tensor`` and ``c_tensor`` (None without ``generate_c``), (M, N) with A's unit dim.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np
        >>> ones = np.ones(4, np.float32)
        >>> ends = np.array([1, 4], np.int32)
        >>> d, c = grouped_gemm_forward(np.ones((4, 8), np.float32), ends, ones[:2],
        ...                             np.ones((2, 32, 8), np.float32), prob_tensor=ones)
        >>> d.shape, c is None
        ((4, 32), True)
    """
    check_fixed(acc_dtype, cd_major, m_aligned)
    check_unfused_hints(mma_tiler_mn, cluster_shape_mn)
    weights, form = weights_of(a_tensor, b_tensor, b_ptrs, n, b_dtype, b_major, canonical_n=True)
    rows, prob = as_rows(a_tensor, "a_tensor"), required_vector(prob_tensor, "prob_tensor")
    check_device_values(padded_offsets, rows.shape[0], b_ptrs)
    outs = all_or_none(
        as_rows(d_tensor, "d_tensor", absent=True), as_rows(c_tensor, "c_tensor", absent=True) if generate_c else None
    )
    operands = (rows, weights, padded_offsets, alpha_tensor, prob, bias_tensor)
    options = (
        ("d_dtype", d_dtype or "bfloat16"),
        ("c_dtype", c_dtype or "bfloat16"),
        ("generate_c", generate_c),
        ("zero_tail", outs is None),
        *form,
    )
    d, c = call(FORWARD, operands, options, backend=backend, stream=current_stream, outs=outs)
    kept = None if not generate_c else in_form(c, a_tensor.ndim) if c_tensor is None else c_tensor
    return TupleDict(d_tensor=in_form(d, a_tensor.ndim) if d_tensor is None else d_tensor, c_tensor=kept)


def grouped_gemm_jax_forward(
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
    generate_c: bool = False,
    use_dynamic_sched: bool = False,
    *,
    b_tensor: Any = None,
    bias_tensor: Any = None,
    b_major: str = "k",
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`grouped_gemm_forward` for JAX: usable under ``jit`` with traced offsets, ``grad`` and ``vmap``.

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
        generate_c: Whether to return C.
        use_dynamic_sched: Hint without effect on results.
        b_tensor: Dense weights (L, N, K), or (L, K, N) with ``b_major="n"``.
        bias_tensor: (N, L) or None.
        b_major: ``"k"`` or ``"n"``.
        backend: ``None`` or a name.

    Returns:
        ``(d, c)``; c is None without ``generate_c``.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out = grouped_gemm_forward(
        as_jax("a_tensor", a_tensor),
        padded_offsets,
        alpha_tensor,
        b_tensor,
        bias_tensor,
        b_ptrs,
        n,
        None if b_ptrs is None else a_tensor.dtype,
        b_major,
        prob_tensor,
        acc_dtype,
        c_dtype,
        d_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        vector_f32=vector_f32,
        generate_c=generate_c,
        use_dynamic_sched=use_dynamic_sched,
        backend=backend,
    )
    return out[0], out[1]
