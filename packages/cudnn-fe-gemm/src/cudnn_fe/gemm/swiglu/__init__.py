"""GEMM + SwiGLU: ``S = alpha * A @ B^T``, and ``value * silu(gate)`` over alternating 32-column blocks of S."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.gemm.scaled_calls import refuse_fp8_result
from cudnn_fe.gemm.swiglu.op import FORWARD
from cudnn_fe.gemm.swiglu_scaled import gemm_swiglu_scaled_forward

__all__ = [
    "gemm_swiglu_backward",
    "gemm_swiglu_forward",
    "gemm_swiglu_jax_backward",
    "gemm_swiglu_jax_forward",
]


def gemm_swiglu_forward(
    a_tensor: Any,
    b_tensor: Any,
    alpha: float = 1.0,
    c_major: str = "n",
    ab12_dtype: Any = "float32",
    c_dtype: Any = "float16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Batched GEMM followed by SwiGLU; returns the pre-activation and the activation.

    Differentiable under torch autograd and JAX for float32, float16 and bfloat16 operands.

    Args:
        a_tensor: A (M, K, L): float16, bfloat16, float32, E4M3 or E5M2; contiguous along M or K. JAX: row-major, L = 1.
        b_tensor: B (N, K, L), N a multiple of 64, same dtype; contiguous along N or K. Rows 0-31 of every 64 give the
            value, rows 32-63 the gate.
        alpha: Scale of the product.
        c_major: Contiguous dim of both results, ``"m"`` or ``"n"``.
        ab12_dtype: float32, float16 or bfloat16.
        c_dtype: float16 or bfloat16.
        acc_dtype: float32, or float16, which is served by float32 sums.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sfa_tensor: Scale factors of A; with them the call is one of `gemm_swiglu_scaled_forward`, which see.
        sfb_tensor: Those of B.
        norm_const_tensor: float32 (1,), for an FP8 C of that mode.
        sf_vec_size: Elements per scale factor.
        vector_f32: Hint without effect on results.
        ab12_stages: Hint without effect on results.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.
        backend: ``None`` (best that serves), or ``"sm90"``, ``"portable"``, ``"reference"``: that one or an error.

    Returns:
        ``ab12_tensor`` (M, N, L), ``c_tensor`` (M, N/2, L), ``sfc_tensor`` and ``amax_tensor``, None without scales.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        NotYetSupportedError: An FP8 AB12 without scale factors.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np
        >>> out = gemm_swiglu_forward(np.ones((2, 8, 1), np.float32), np.ones((64, 8, 1), np.float32))
        >>> [x.shape for x in (out["ab12_tensor"], out["c_tensor"])]
        [(2, 64, 1), (2, 32, 1)]
    """
    if sfa_tensor is not None or sfb_tensor is not None or norm_const_tensor is not None:
        require_both_scales(sfa_tensor, sfb_tensor)
        return gemm_swiglu_scaled_forward(
            a_tensor,
            b_tensor,
            sfa_tensor,
            sfb_tensor,
            norm_const_tensor,
            alpha,
            c_major,
            ab12_dtype,
            c_dtype,
            acc_dtype,
            mma_tiler_mn,
            cluster_shape_mn,
            sf_vec_size,
            ab12_stages,
            stream,
            backend=backend,
        )
    options = (
        ("c_major", c_major),
        ("ab12_dtype", ab12_dtype),
        ("c_dtype", c_dtype),
        ("acc_dtype", acc_dtype),
        ("mma_tiler_mn", mma_tiler_mn),
        ("cluster_shape_mn", cluster_shape_mn),
        ("sf_vec_size", sf_vec_size),
        ("ab12_stages", ab12_stages),
    )
    ab12, c = call(FORWARD, (a_tensor, b_tensor), options, (alpha,), backend=backend, stream=stream)
    return TupleDict(ab12_tensor=ab12, c_tensor=c, sfc_tensor=None, amax_tensor=None)


def gemm_swiglu_backward(
    a_tensor: Any,
    b_tensor: Any,
    ab12_tensor: Any,
    dc_tensor: Any,
    dab12_tensor: Any = None,
    alpha: float = 1.0,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `gemm_swiglu_forward`.

    Args:
        a_tensor: A (M, K, L), as in the forward.
        b_tensor: B (N, K, L), as in the forward.
        ab12_tensor: The forward's pre-activation (M, N, L).
        dc_tensor: Gradient of the activation (M, N/2, L); float32, float16 or bfloat16.
        dab12_tensor: Gradient of the pre-activation (M, N, L) from its other uses, or None.
        alpha: As in the forward.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``da_tensor`` (M, K, L) and ``db_tensor`` (N, K, L), in the operands' dtype; bfloat16 for FP8 operands.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, BackendError: As the message says.
    """
    from cudnn_fe.gemm.swiglu.gradient import gradients  # keeps `import cudnn_fe.gemm` light

    da, db = gradients(
        a_tensor,
        b_tensor,
        ab12_tensor,
        dc_tensor,
        dab12_tensor,
        alpha,
        (True, True),
        backend=backend,
        stream=stream,
    )
    return TupleDict(da_tensor=da, db_tensor=db)


def gemm_swiglu_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    alpha: float = 1.0,
    ab12_dtype: Any = "float32",
    c_dtype: Any = "float16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    *,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`gemm_swiglu_forward` for JAX: usable under ``jit``, ``grad`` and ``vmap``; runs on CPU and CUDA.

    Args:
        a_tensor: A (M, K, 1) or (M, K), row-major.
        b_tensor: B (N, K, 1) or (N, K), row-major, of the same rank.
        alpha: Scale of the product; static under ``jit``, as all that follows.
        ab12_dtype: float32, float16 or bfloat16.
        c_dtype: float16 or bfloat16.
        acc_dtype: float32, or float16, which is served by float32 sums.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sfa_tensor: Packed scale factors of A, physical form; see `gemm_swiglu_scaled_forward`.
        sfb_tensor: Those of B.
        sf_vec_size: Elements per scale factor.
        vector_f32: Hint without effect on results.
        ab12_stages: Hint without effect on results.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(ab12, c)`` of shapes (M, N, 1) and (M, N/2, 1), or without the last dim for 2-D operands.

    Raises:
        ShapeError, StrideError, DTypeError, OptionError, NotYetSupportedError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import jax_arrays  # the caller asks for JAX

    if sfa_tensor is not None:
        refuse_fp8_result("c_dtype", c_dtype, "gemm_swiglu_scaled_forward")
    arrays = jax_arrays(a_tensor=a_tensor, b_tensor=b_tensor, sfa_tensor=sfa_tensor, sfb_tensor=sfb_tensor)
    flat = arrays["a_tensor"].ndim == 2 and arrays["b_tensor"].ndim == 2
    if flat:
        arrays |= {name: arrays[name][:, :, None] for name in ("a_tensor", "b_tensor")}
    out = gemm_swiglu_forward(
        **arrays,
        alpha=alpha,
        ab12_dtype=ab12_dtype,
        c_dtype=c_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        vector_f32=vector_f32,
        ab12_stages=ab12_stages,
        backend=backend,
    )
    ab12, c = out[0], out[1]
    return (ab12[:, :, 0], c[:, :, 0]) if flat else (ab12, c)


def gemm_swiglu_jax_backward(
    a_tensor: Any,
    b_tensor: Any,
    ab12_tensor: Any,
    dc_tensor: Any,
    dab12_tensor: Any = None,
    alpha: float = 1.0,
    *,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`gemm_swiglu_backward` for JAX: ``(da, db)`` for row-major operands with L = 1, usable under ``jit``.

    Args:
        a_tensor: A (M, K, 1).
        b_tensor: B (N, K, 1).
        ab12_tensor: The forward's pre-activation (M, N, 1).
        dc_tensor: Gradient of the activation (M, N/2, 1).
        dab12_tensor: Gradient of the pre-activation from its other uses, or None.
        alpha: As in the forward.
        backend: ``None``, or the name of the one to use.

    Returns:
        Gradients of A and of B.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    names = ("a_tensor", "b_tensor", "ab12_tensor", "dc_tensor", "dab12_tensor")
    given = (a_tensor, b_tensor, ab12_tensor, dc_tensor, dab12_tensor)
    a, b, ab12, dc, dab12 = (None if x is None else as_jax(name, x) for name, x in zip(names, given, strict=True))
    out = gemm_swiglu_backward(a, b, ab12, dc, dab12, alpha, backend=backend)
    return out[0], out[1]


def require_both_scales(sfa_tensor: Any, sfb_tensor: Any) -> None:
    """Raises OptionError unless both operands' scale factors are there."""
    for name, scales in (("sfa_tensor", sfa_tensor), ("sfb_tensor", sfb_tensor)):
        if scales is None:
            raise OptionError(
                name,
                got="None",
                wanted="scale factors of both operands, as the call is of the block-scaled mode",
                remedy="pass both, or none of sfa_tensor, sfb_tensor and norm_const_tensor",
            )
