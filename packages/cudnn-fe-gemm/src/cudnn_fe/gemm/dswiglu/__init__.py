"""SwiGLU's derivative over alternating 32-column blocks."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.gemm.dswiglu.op import DSWIGLU

__all__ = ["dswiglu"]


def dswiglu(
    ab12: Any, dc: Any, upstream: Any = None, *, dtype: Any = "bfloat16", backend: str | None = None, stream: Any = None
) -> Any:
    """Gradient of AB12 (M, N, L) from that of C (M, N/2, L), plus ``upstream`` (M, N, L) where given.

    Args:
        ab12: Pre-activation, float32, float16 or bfloat16; contiguous along M or N.
        dc: Gradient of the activation, any of the same dtypes.
        upstream: Gradient of AB12 from other uses of it, or None.
        dtype: Result dtype: float32, float16 or bfloat16.
        backend: None, or the name of the one to use.
        stream: Launch stream for CUDA tensors.

    Returns:
        d(AB12) (M, N, L), compact, contiguous along AB12's contiguous dim.
    """
    return call(DSWIGLU, (ab12, dc, upstream), (("dtype", dtype),), backend=backend, stream=stream)[0]
