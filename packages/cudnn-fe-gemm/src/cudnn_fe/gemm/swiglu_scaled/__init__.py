"""GEMM + SwiGLU of MXFP8, MXFP4 and NVFP4 operands."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.gemm.scaled_calls import documented, scaled_options

__all__ = ["gemm_swiglu_scaled_forward"]


def gemm_swiglu_scaled_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    norm_const_tensor: Any = None,
    alpha: float = 1.0,
    c_major: str = "n",
    ab12_dtype: Any = "float32",
    c_dtype: Any = "float16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    ab12_stages: int = 4,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Batched GEMM of quantised operands followed by SwiGLU: what `gemm_swiglu_forward` does when it is given scales.

    Args:
        a_tensor: A (M, K, L): E4M3, E5M2, or FP4 as torch's pairs, uint8 pairs along K, or NumPy's and JAX's own dtype.
        b_tensor: B (N, K, L), same dtype, N a multiple of 64: rows 0-31 of every 64 give the value, 32-63 the gate.
        sfa_tensor: Packed scales of A, ``scale_shape(M, K / sf_vec_size, L)`` or its atom view: E8M0 or E4M3.
        sfb_tensor: Packed scales of B, same dtype.
        norm_const_tensor: float32 (1,), needed for an FP8 C.
        alpha: Scale of the product.
        c_major: Contiguous dim of both results, ``"m"`` or ``"n"``.
        ab12_dtype: float32, float16, bfloat16, E4M3 or E5M2.
        c_dtype: The same; FP8 with FP8 operands only, then with scales.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4.
        ab12_stages: Hint without effect on results.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``ab12_tensor`` (M, N, L); ``c_tensor`` (M, N/2, L); ``sfc_tensor`` for an FP8 C, the atom view (JAX: the
        physical form), else None; ``amax_tensor`` (1, 1, 1) with FP4 operands and a bfloat16 C, else None.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> a, b = np.ones((2, 32, 1), ml_dtypes.float8_e4m3fn), np.ones((64, 32, 1), ml_dtypes.float8_e4m3fn)
        >>> scales = np.full((1, 1, 1, 32, 4, 4), 1, ml_dtypes.float8_e8m0fnu)
        >>> out = gemm_swiglu_scaled_forward(a, b, scales, scales, sf_vec_size=32)
        >>> float(out["ab12_tensor"][0, 0, 0]), float(out["c_tensor"][0, 0, 0])
        (32.0, 1024.0)
    """
    from cudnn_fe.gemm.swiglu_scaled.op import SCALED  # the standard mode does without

    tiles = (mma_tiler_mn, cluster_shape_mn)
    options = (
        *scaled_options(a_tensor, c_major, c_dtype, acc_dtype, tiles, sf_vec_size, (1, 1, 1)),
        ("ab12_dtype", ab12_dtype),
        ("ab12_stages", ab12_stages),
    )
    operands = (
        packed_pairs(a_tensor, axis=1),
        packed_pairs(b_tensor, axis=1),
        sfa_tensor,
        sfb_tensor,
        norm_const_tensor,
    )
    ab12, c, sfc, amax = call(SCALED, operands, options, (alpha,), backend=backend, stream=stream)
    amax, sfc = documented(a_tensor, c_dtype, amax, sfc)
    if dtype(c_dtype).name != "bfloat16":
        amax = None
    return TupleDict(ab12_tensor=ab12, c_tensor=c, sfc_tensor=sfc, amax_tensor=amax)
