"""Block-scaled GEMM followed by squared ReLU and a factor for every row."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.gemm.scaled_calls import documented, refuse_fp8_result, scaled_options
from cudnn_fe.gemm.srelu.op import SRELU

__all__ = ["gemm_srelu_forward", "gemm_srelu_jax_forward"]


def gemm_srelu_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    prob_tensor: Any,
    alpha: float = 1.0,
    c_major: str = "n",
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Batched GEMM of MXFP8, MXFP4 or NVFP4 operands; returns the pre-activation and ``prob * relu(.)**2``.

    Differentiable in ``prob_tensor`` under torch autograd and JAX.

    Args:
        a_tensor: A (M, K, L): E4M3, E5M2, or FP4 as torch's pairs, uint8 pairs along K, or NumPy's and JAX's own dtype.
        b_tensor: B (N, K, L), same dtype.
        sfa_tensor: Packed scales of A, ``scale_shape(M, K / sf_vec_size, L)`` or its atom view: E8M0 or E4M3.
        sfb_tensor: Packed scales of B, same dtype.
        prob_tensor: float32 (M, 1, L).
        alpha: Scale of the product.
        c_major: Contiguous dim of C and D, ``"m"`` or ``"n"``.
        c_dtype: float32, float16, bfloat16, E4M3 or E5M2.
        d_dtype: The same; FP8 with FP8 operands only, then with scales.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        norm_const_tensor: float32 (1,), needed for an FP8 D.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        vector_f32: Hint without effect on results.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``c_tensor`` and ``d_tensor`` (M, N, L); ``amax_tensor`` (1,) with FP4 operands, else None; ``sfd_tensor``
        for an FP8 D, the atom view (JAX: the physical form), else None.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> a, b = np.ones((2, 32, 1), ml_dtypes.float8_e4m3fn), np.ones((3, 32, 1), ml_dtypes.float8_e4m3fn)
        >>> scales = np.full((1, 1, 1, 32, 4, 4), 1, ml_dtypes.float8_e8m0fnu)
        >>> out = gemm_srelu_forward(a, b, scales, scales, np.ones((2, 1, 1), np.float32), sf_vec_size=32)
        >>> float(out["c_tensor"][0, 0, 0]), float(out["d_tensor"][0, 0, 0])
        (32.0, 1024.0)
    """
    tiles = (mma_tiler_mn, cluster_shape_mn)
    options = (
        *scaled_options(a_tensor, c_major, d_dtype, acc_dtype, tiles, sf_vec_size),
        ("c_dtype", c_dtype),
    )
    a, b = packed_pairs(a_tensor, axis=1), packed_pairs(b_tensor, axis=1)
    operands = (a, b, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor)
    c, d, amax, sfd = call(SRELU, operands, options, (alpha,), backend=backend, stream=stream)
    amax, sfd = documented(a_tensor, d_dtype, amax, sfd)
    return TupleDict(c_tensor=c, d_tensor=d, amax_tensor=amax, sfd_tensor=sfd)


def gemm_srelu_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    prob_tensor: Any,
    alpha: float = 1.0,
    c_dtype: Any = "bfloat16",
    d_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    *,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`gemm_srelu_forward` for JAX: usable under ``jit``, ``grad`` and ``vmap``; runs on CPU and CUDA.

    Args:
        a_tensor: A (M, K, 1), row-major.
        b_tensor: B (N, K, 1), row-major.
        sfa_tensor: Packed scales of A, physical form.
        sfb_tensor: Packed scales of B.
        prob_tensor: float32 (M, 1, 1).
        alpha: Scale of the product; static under ``jit``, as all that follows.
        c_dtype: As in `gemm_srelu_forward`.
        d_dtype: float32, float16 or bfloat16.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale.
        vector_f32: Hint without effect on results.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(c, d)``, each (M, N, 1).

    Raises:
        ShapeError, StrideError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import jax_arrays  # the caller asks for JAX

    refuse_fp8_result("d_dtype", d_dtype, "gemm_srelu_forward")
    arrays = jax_arrays(
        a_tensor=a_tensor, b_tensor=b_tensor, sfa_tensor=sfa_tensor, sfb_tensor=sfb_tensor, prob_tensor=prob_tensor
    )
    out = gemm_srelu_forward(
        **arrays,
        alpha=alpha,
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        vector_f32=vector_f32,
        backend=backend,
    )
    return out[0], out[1]
