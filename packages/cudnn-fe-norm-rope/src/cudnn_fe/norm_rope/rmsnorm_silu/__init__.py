"""RMSNorm followed by SiLU, in bfloat16, FP8 or FP4."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["rmsnorm_silu_forward", "rmsnorm_silu_jax_forward"]


def rmsnorm_silu_forward(
    x: Any,
    weight: Any,
    eps: float,
    out_dtype: Any = "bfloat16",
    *,
    backend: str | None = None,
    stream: Any = None,
) -> TupleDict:
    """``silu(weight * x / rms(x))`` of every row, rounded once into the result's format.

    Args:
        x: (T, C) bfloat16, or more dims with one element, as (T, C, 1, 1); C a multiple of 8, of 16 for FP4; channels
            innermost, rows any distance apart.
        weight: C bfloat16 elements, contiguous.
        eps: Added to the mean square.
        out_dtype: bfloat16, float8_e4m3fn, or float4_e2m1fn.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.

    Returns:
        ``out``, shaped as x, or for FP4 uint8 (T, C/2) with two codes a byte, the even column in the low half; and
        ``block_scale``, None except for FP4: float8_e4m3fn (T, C/16), ``max |z| / 6`` of 16 columns.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError: Operands outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> x = np.ones((2, 16), ml_dtypes.bfloat16)
        >>> float(rmsnorm_silu_forward(x, x[0], 0.0)["out"][0, 0])
        0.73046875
    """
    from cudnn_fe.norm_rope.rmsnorm_silu.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    results = call(FORWARD, (x, weight), (("out_dtype", out_dtype),), (float(eps),), backend=backend, stream=stream)
    return TupleDict(out=results[0], block_scale=results[1] if len(results) > 1 else None)


def rmsnorm_silu_jax_forward(
    x: Any, weight: Any, eps: float, out_dtype: Any = "bfloat16", *, backend: str | None = None
) -> tuple[Any, Any]:
    """`rmsnorm_silu_forward` for JAX: usable under ``jit`` and ``vmap``; runs on CPU and CUDA.

    Args:
        x: (T, C) bfloat16.
        weight: (C,) bfloat16.
        eps: Added to the mean square; static under ``jit``, as all that follows.
        out_dtype: bfloat16, float8_e4m3fn, or float4_e2m1fn.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(out, block_scale)``; the second is None except for FP4.

    Raises:
        ShapeError, DTypeError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    out, scale = rmsnorm_silu_forward(as_jax("x", x), as_jax("weight", weight), eps, out_dtype, backend=backend)
    return out, scale
