"""Plain batched GEMM: ``D = alpha * A @ B^T``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.gemm.matmul.op import MATMUL

__all__ = ["matmul"]


def matmul(
    a: Any,
    b: Any,
    alpha: float = 1.0,
    *,
    d_dtype: Any = "float32",
    d_major: str = "n",
    backend: str | None = None,
    stream: Any = None,
) -> Any:
    """``D = alpha * A @ B^T`` for A (M, K, L) and B (N, K, L) of one dtype, summed in float32.

    Args:
        a: float16, bfloat16, float32, E4M3 or E5M2; contiguous along M or K. May be a `cudnn_fe.core.call.Permuted`.
        b: Same dtype; contiguous along N or K.
        alpha: Scale of the product.
        d_dtype: float32, float16 or bfloat16.
        d_major: Contiguous dim of D, ``"m"`` or ``"n"``.
        backend: None, or the name of the one to use.
        stream: Launch stream for CUDA tensors.

    Returns:
        D (M, N, L), batch outermost in memory.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, BackendError: As the message says.
    """
    options = (("d_dtype", d_dtype), ("d_major", d_major))
    return call(MATMUL, (a, b), options, (alpha,), backend=backend, stream=stream)[0]
