"""Pieces of the references that know nothing of attention: one source for NumPy, torch and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_compat import device, is_jax_array

from cudnn_fe.core.arrays import astype, sigmoid
from cudnn_fe.core.codecs import decode, encode, from_codes, to_bfloat16, to_codes, to_float16
from cudnn_fe.core.dtypes import dtype

__all__ = [
    "astype",
    "divide",
    "every",
    "index_range",
    "known_finite",
    "narrow",
    "product",
    "readable",
    "round_through",
    "sigmoid",
    "sweep",
    "take",
    "when",
    "wide",
    "without_gradient",
    "zeros_like",
]


def wide(x: Any) -> Any:
    """``x`` in the type that sums are taken in: float32, or float64 for float64."""
    kind = dtype(x.dtype)
    if kind.is_fp8:
        return decode(to_codes(x), kind.name)
    return x if kind.name == "float64" else astype(x, "float32")


def narrow(x: Any, name: str) -> Any:
    """``x`` rounded to nearest even in the dtype called ``name``; FP8 saturates."""
    return from_codes(encode(x, name), name) if dtype(name).is_fp8 else astype(x, name)


def round_through(x: Any, name: str) -> Any:
    """``x`` rounded as `narrow` does, in the type it came in."""
    if name in ("float32", "float64"):
        return x
    if dtype(name).is_fp8:
        return decode(encode(x, name), name)
    if is_jax_array(x):  # XLA drops a cast to 16 bits and back: it may keep excess precision
        return astype(to_bfloat16(x) if name == "bfloat16" else to_float16(x), "float32")
    return astype(astype(x, name), dtype(x.dtype).name)


def product(xp: Any, a: Any, b: Any) -> Any:
    """``a @ b`` over the last two dims, with all bits of float32 on every platform."""
    options = {"precision": "highest"} if xp.__name__ == "jax.numpy" else {}
    return xp.matmul(a, b, **options)


def divide(xp: Any, x: Any, divisor: Any) -> Any:
    """``x / divisor``, rounded once; the divisor is a number or an array that broadcasts to ``x``."""
    below = xp.full_like(x, divisor) if isinstance(divisor, float) else xp.broadcast_to(divisor, x.shape)
    if is_jax_array(x):
        import jax  # x is its array

        below = jax.lax.optimization_barrier(below)  # XLA would round the reciprocal of what is repeated too
    return x / below


def index_range(xp: Any, count: int, like: Any) -> Any:
    """``0 .. count-1`` where ``like`` is."""
    if hasattr(like, "is_cuda"):
        return xp.arange(count, device=like.device)
    return xp.arange(count)


def take(xp: Any, x: Any, indices: Any, axis: int) -> Any:
    """Slices of ``x`` at ``indices`` (one-dimensional) along ``axis``; indices outside are moved to the nearest."""
    indices = xp.clip(indices, 0, x.shape[axis] - 1)
    if x.ndim > 1 and axis == x.ndim - 1 and hasattr(x, "is_cuda") and not x.is_cuda:
        # torch takes elements one by one, 6 ns each on a CPU; rows it copies.
        return xp.matrix_transpose(xp.take(xp.matrix_transpose(x), indices, axis=axis - 1)).contiguous()
    return xp.take(x, indices, axis=axis)


def every(xp: Any, conditions: tuple[Any, ...]) -> Any:
    """Where all conditions hold."""
    del xp
    first, *others = conditions
    for other in others:
        first = first & other
    return first


def sweep(xp: Any, count: int, body: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]], carry: Any) -> tuple[Any, Any]:
    """Runs ``body(carry, i)`` for i below ``count``, one after the other.

    Memory holds one step at a time: a loop, and a scan under JAX, whose graph does not grow with ``count``.

    Returns:
        The last carry, and the results of each step stacked along a new first dim.
    """
    if count == 1:
        carry, results = body(carry, 0)
        return carry, tuple(x[None] for x in results)
    if xp.__name__ == "jax.numpy":
        import jax  # xp is its namespace

        return jax.lax.scan(body, carry, xp.arange(count))
    stacked: tuple[Any, ...] = ()
    for position in range(count):
        carry, results = body(carry, position)
        if position == 0:  # filled as they come: a list of them would be held beside its copy
            stacked = tuple(xp.empty((count, *x.shape), dtype=x.dtype, device=device(x)) for x in results)
        for total, x in zip(stacked, results, strict=True):
            total[position] = x
    return carry, stacked


def readable(xp: Any, x: Any) -> bool:
    """Whether looking at values of ``x`` costs no synchronisation and breaks no trace."""
    return xp.__name__ != "jax.numpy" and not getattr(x, "is_cuda", False)


def when(xp: Any, look: bool, conditions: Any, then: Callable[[Any], Any], carry: Any) -> Any:
    """``then(carry)``, or ``carry`` where no condition holds, ``look`` is true and a trace can look.

    ``then`` must change nothing where no condition holds.
    """
    if look and xp.__name__ == "jax.numpy":
        import jax  # xp is its namespace

        return jax.lax.cond(xp.any(conditions), then, lambda x: x, carry)
    return then(carry)


def known_finite(xp: Any, values: Any) -> bool:
    """Whether all values are known to be finite: asked only where the answer needs no synchronisation."""
    return readable(xp, values) and bool(xp.all(xp.isfinite(values)))


def without_gradient(x: Any) -> Any:
    """``x`` as a constant of whatever is differentiated."""
    if hasattr(x, "detach"):
        return x.detach()
    if is_jax_array(x):
        import jax  # x is its array

        return jax.lax.stop_gradient(x)
    return x


def zeros_like(x: Any) -> Any:
    """Zeros of the shape and dtype of ``x``, in its framework."""
    import array_api_compat

    return array_api_compat.array_namespace(x).zeros_like(x)
