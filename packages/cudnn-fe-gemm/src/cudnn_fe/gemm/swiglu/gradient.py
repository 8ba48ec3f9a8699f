"""The derivative of GEMM + SwiGLU: d(AB12), then two GEMMs of the forward's own main loop."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.call import Permuted
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.gemm.arrays import widen_fp8
from cudnn_fe.gemm.dswiglu import dswiglu
from cudnn_fe.gemm.matmul import matmul

__all__ = ["GRADIENT", "gradients"]


def gradients(
    a: Any,
    b: Any,
    ab12: Any,
    dc: Any,
    d_ab12: Any,
    alpha: float,
    needed: tuple[bool, ...],
    *,
    backend: str | None = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """``(dA, dB)`` from the gradients of C and AB12; None where not needed.

    ``d(AB12)`` is kept in the operands' dtype, bfloat16 for FP8: what the tensor cores multiply.
    """
    a, b = widen_fp8(a), widen_fp8(b)
    kind = dtype(a.dtype).name
    place = {"backend": backend, "stream": stream}
    ds = astype(d_ab12, kind) if dc is None else dswiglu(ab12, dc, d_ab12, dtype=kind, **place)
    da = db = None
    # dA[m,k] = sum_n dS[m,n] B[n,k] contracts over N: B is seen as (K, N, L). dB[n,k] contracts over M.
    if needed[0]:
        da = matmul(ds, Permuted(b, (1, 0, 2)), alpha, d_dtype=kind, **place)
    if needed[1]:
        db = matmul(Permuted(ds, (1, 0, 2)), Permuted(a, (1, 0, 2)), alpha, d_dtype=kind, **place)
    return da, db


def _backward(
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
) -> tuple[Any, ...]:
    a, b, ab12 = saved
    d_ab12, dc = cotangents
    return gradients(a, b, ab12, dc, d_ab12, scalars[0], needed, backend=backend)


GRADIENT = Gradient(
    name="gemm_swiglu_forward",
    save=lambda operands, outputs: (*operands, outputs[0]),
    backward=_backward,
    explicit="gemm_swiglu_backward",
)
