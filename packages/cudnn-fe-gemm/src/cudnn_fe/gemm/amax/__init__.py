"""Block-scaled GEMM that also returns ``max |C|``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.gemm.amax.op import AMAX

__all__ = ["gemm_amax_forward", "gemm_amax_jax_forward"]


def gemm_amax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    c_major: str = "n",
    c_dtype: Any = "float32",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] = (1, 1),
    sf_vec_size: int = 32,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Batched GEMM of MXFP8, MXFP4 or NVFP4 operands, and the largest absolute value of its result.

    Args:
        a_tensor: A (M, K, L): E4M3, E5M2, or FP4 as torch's pairs, uint8 pairs along K, or NumPy's and JAX's own dtype.
        b_tensor: B (N, K, L), same dtype.
        sfa_tensor: Packed scales of A, ``scale_shape(M, K / sf_vec_size, L)`` or its atom view: E8M0, int8 bytes of it,
            or E4M3.
        sfb_tensor: Packed scales of B, same dtype.
        c_major: Contiguous dim of C, ``"m"`` or ``"n"``.
        c_dtype: float32, float16, bfloat16, E4M3, E5M2; for FP4 operands also FP4 or uint8 (packed pairs along N).
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``c_tensor`` (M, N, L), FP4 as (M, N/2, L); ``amax_tensor`` (1, 1, 1) float32.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> a, b = np.ones((2, 32, 1), ml_dtypes.float8_e4m3fn), np.ones((3, 32, 1), ml_dtypes.float8_e4m3fn)
        >>> scales = np.full((1, 1, 1, 32, 4, 4), 2, ml_dtypes.float8_e8m0fnu)
        >>> out = gemm_amax_forward(a, b, scales, scales)
        >>> out["c_tensor"].shape, out["amax_tensor"].item()
        ((2, 3, 1), 128.0)
    """
    options = (
        ("c_major", c_major),
        ("c_dtype", c_dtype),
        ("acc_dtype", acc_dtype),
        ("mma_tiler_mn", mma_tiler_mn),
        ("cluster_shape_mn", cluster_shape_mn),
        ("sf_vec_size", sf_vec_size),
    )
    operands = (packed_pairs(a_tensor, axis=1), packed_pairs(b_tensor, axis=1), sfa_tensor, sfb_tensor)
    c, amax = call(AMAX, operands, options, backend=backend, stream=stream)
    return TupleDict(c_tensor=c, amax_tensor=amax)


def gemm_amax_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    c_dtype: Any = "float32",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] = (1, 1),
    sf_vec_size: int = 32,
    *,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`gemm_amax_forward` for JAX: usable under ``jit`` and ``vmap``; runs on CPU and CUDA.

    Args:
        a_tensor: A (M, K, 1), row-major.
        b_tensor: B (N, K, 1), row-major.
        sfa_tensor: Packed scales of A, physical form.
        sfb_tensor: Packed scales of B.
        c_dtype: As in `gemm_amax_forward`; FP4 comes as uint8 pairs.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(c, amax)`` of shapes (M, N, 1) and (1, 1, 1).

    Raises:
        ShapeError, StrideError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import jax_arrays  # the caller asks for JAX

    arrays = jax_arrays(a_tensor=a_tensor, b_tensor=b_tensor, sfa_tensor=sfa_tensor, sfb_tensor=sfb_tensor)
    out = gemm_amax_forward(
        **arrays,
        c_dtype=c_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        backend=backend,
    )
    return out[0], out[1]
