"""Query projection of latent attention: GEMM, rotary embedding, MXFP8 in two directions."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gemm_proj_rope_mxfp8_forward", "gemm_proj_rope_mxfp8_jax_forward", "gemm_proj_rope_mxfp8_reference"]


def gemm_proj_rope_mxfp8_forward(
    x: Any,
    w: Any,
    cos: Any,
    sin: Any,
    x_scale: Any = None,
    w_scale: Any = None,
    w_out_in: bool = True,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Project tokens to heads of 192 features, rotate the last 64 of each, quantise along features and along tokens.

    Args:
        x: (T, K) bfloat16 or E4M3, contiguous as all operands.
        w: (N, K) of the same dtype, N = 192 heads; (K, N) with ``w_out_in=False``.
        cos: (T, 64) bfloat16.
        sin: (T, 64) bfloat16.
        x_scale: (T, K/32) E8M0, also as uint8, with E4M3 operands; else None. Plain rows, not the packed layout.
        w_scale: (N, K/32), or (K/32, N) with ``w_out_in=False``, likewise.
        w_out_in: Whether the weight is stored (N, K).
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out_fp8_row`` (T, H, 192) E4M3 and ``out_scales_row`` (T, H, 6) uint8, scaled per 32 features;
        ``out_fp8_col`` (T, H, 192) and ``out_scales_col`` (T/32, H, 192), scaled per 32 tokens.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> x, w = np.ones((32, 8), ml_dtypes.bfloat16), np.ones((192, 8), ml_dtypes.bfloat16)
        >>> cos, sin = np.ones((32, 64), ml_dtypes.bfloat16), np.zeros((32, 64), ml_dtypes.bfloat16)
        >>> out = gemm_proj_rope_mxfp8_forward(x, w, cos, sin)
        >>> float(out["out_fp8_row"][0, 0, 0]), out["out_scales_row"][0, 0].tolist()  # 8 = 256 * 2**(122 - 127)
        (256.0, [122, 122, 122, 122, 122, 122])
    """
    from cudnn_fe.gemm.proj_rope.op import FORWARD  # keeps `import cudnn_fe.gemm` light

    operands = (x, w, cos, sin, x_scale, w_scale)
    results = call(FORWARD, operands, (("w_out_in", w_out_in),), backend=backend, stream=stream)
    return TupleDict(zip(FORWARD.results, results, strict=True))


def gemm_proj_rope_mxfp8_jax_forward(
    x: Any, w: Any, cos: Any, sin: Any, x_scale: Any = None, w_scale: Any = None, *, backend: str | None = None
) -> tuple[Any, Any, Any, Any]:
    """`gemm_proj_rope_mxfp8_forward` for JAX: usable under ``jit`` and ``vmap``; runs on CPU and CUDA.

    Args:
        x: (T, K) bfloat16 or E4M3.
        w: (N, K) of the same dtype.
        cos: (T, 64) bfloat16.
        sin: (T, 64) bfloat16.
        x_scale: (T, K/32) E8M0 or uint8, with E4M3 operands.
        w_scale: (N, K/32) likewise.
        backend: ``None``, or the name of the one to use.

    Returns:
        The four results in order.

    Raises:
        ShapeError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    given = {"x": x, "w": w, "cos": cos, "sin": sin, "x_scale": x_scale, "w_scale": w_scale}
    arrays: dict[str, Any] = {name: as_jax(name, value) for name, value in given.items() if value is not None}
    rows, row_scales, columns, column_scales = gemm_proj_rope_mxfp8_forward(**arrays, backend=backend)
    return rows, row_scales, columns, column_scales


def gemm_proj_rope_mxfp8_reference(
    x: Any, w: Any, cos: Any, sin: Any, w_out_in: bool = False
) -> tuple[Any, Any, Any, Any]:
    """The definition for bfloat16 operands, on whatever device they are.

    Args:
        x: (T, K).
        w: (K, N); (N, K) with ``w_out_in``.
        cos: (T, 64).
        sin: (T, 64).
        w_out_in: Whether the weight is stored (N, K).

    Returns:
        The four results in order.
    """
    found = gemm_proj_rope_mxfp8_forward(x, w, cos, sin, w_out_in=w_out_in, backend="reference")
    rows, row_scales, columns, column_scales = found
    return rows, row_scales, columns, column_scales
