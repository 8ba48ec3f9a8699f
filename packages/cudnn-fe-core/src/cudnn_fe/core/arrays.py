"""Pieces of references, in array-API style: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.codecs import encode, from_codes, pack_fp4
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.frameworks import framework_of

__all__ = [
    "astype",
    "cast",
    "counting",
    "hadamard",
    "is_jax",
    "matmul",
    "maximum_of",
    "rounded",
    "sigmoid",
]


def is_jax(xp: Any) -> bool:
    """Whether the namespace is JAX's, whose arrays do not change and whose loops are traced."""
    return str(xp.__name__) == "jax.numpy"


def astype(x: Any, name: str) -> Any:
    """``x`` in the framework's dtype called ``name``."""
    if hasattr(x, "astype"):
        import ml_dtypes

        return x.astype(getattr(ml_dtypes, name, name))
    import torch  # x is its tensor

    return x.to(getattr(torch, name))


def cast(x: Any, kind: DType | str, *, axis: int = -1) -> Any:
    """float32 rounded once to the dtype, FP8 and FP4 saturating by our tables; FP4 packed in pairs along ``axis``."""
    kind = dtype(kind)
    if kind.is_fp8:
        return from_codes(encode(x, kind.name), kind.name)
    if kind.bits == 4 or kind.name == "uint8":
        packed = pack_fp4(encode(x, "float4_e2m1fn"), axis=axis)
        if kind.bits == 4 and framework_of(x) == "torch":
            import torch  # x is its tensor

            return packed.view(torch.float4_e2m1fn_x2)
        return packed
    return astype(x, kind.name)


def rounded(x: Any, name: str) -> Any:
    """float32 ``x`` rounded once to the dtype called ``name``, in float32 again."""
    return astype(astype(x, name), "float32")


def counting(xp: Any, count: int, like: Any) -> Any:
    """``0 .. count - 1`` as int32, where ``like`` lives."""
    place = {"device": like.device} if "torch" in xp.__name__ else {}
    return xp.arange(count, dtype=xp.int32, **place)


def matmul(xp: Any, left: Any, right: Any) -> Any:
    """The matrix product of float32 arrays."""
    # JAX multiplies them with fewer bits on some platforms unless told not to.
    options = {"precision": "highest"} if is_jax(xp) else {}
    return xp.matmul(left, right, **options)


def maximum_of(xp: Any, x: Any, axis: int | None = None) -> Any:
    """The largest of floats along an axis or of all, NaN if one is.

    XLA's reductions of some thousand elements or more pass over NaN on a CPU.
    """
    found = xp.max(x) if axis is None else xp.max(x, axis=axis)
    if not is_jax(xp):
        return found
    return xp.where(xp.any(xp.isnan(x), axis=axis), xp.full_like(found, xp.nan), found)


def hadamard(xp: Any, x: Any) -> Any:
    """The natural-order Hadamard transform of the last axis, a power of two long: butterflies at 1, 2, 4, ..."""
    extent = x.shape[-1]
    flat, stride = xp.reshape(x, (-1, extent)), 1
    while stride < extent:
        pairs = xp.reshape(flat, (-1, extent // (2 * stride), 2, stride))
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        flat, stride = xp.reshape(xp.stack((low + high, low - high), axis=2), (-1, extent)), 2 * stride
    return xp.reshape(flat, x.shape)


def sigmoid(xp: Any, x: Any) -> Any:
    """``1 / (1 + exp(-x))`` without overflow for any finite x, NaN for NaN."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))
