"""The definition of LayerNorm-Multiply-SiLU-Dropout and its gradients, for any array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cudnn_fe.norm_rope.arrays import sigmoid, to_bfloat16, wide
from cudnn_fe.norm_rope.hstu_lmsd.dropout import GATE, PRODUCT, X

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.hstu_lmsd.op import LmsdBackward, LmsdForward

__all__ = ["backward", "forward", "philox_words"]

_WORD, _HALF = 0xFFFFFFFF, 0xFFFF
_WEYL = (0x9E3779B9, 0xBB67AE85)


def forward(
    problem: LmsdForward,
    xp: Any,
    x: Any,
    u: Any,
    weight: Any,
    bias: Any,
    seed: Any,
    eps: float,
    scale: float,
    threshold: int,
    seed_low: int,
    seed_high: int,
) -> tuple[Any, ...]:
    """In float32; every segment rounded once, after dropout."""
    rows, columns = problem.x_tensor.shape
    wide_x, wide_u = wide(xp, x), wide(xp, u)
    mean = xp.sum(wide_x, axis=1) * (1.0 / columns)
    variance = xp.sum(wide_x * wide_x, axis=1) * (1.0 / columns) - mean * mean
    variance = xp.where(variance < 0, xp.zeros_like(variance), variance)
    rstd = 1.0 / xp.sqrt(variance + eps)
    gate = wide_u * sigmoid(xp, wide_u) if problem.apply_u_silu else wide_u
    product = ((wide_x - mean[:, None]) * rstd[:, None] * wide(xp, weight) + wide(xp, bias)) * gate
    segments = [(product, PRODUCT)]
    if problem.concat_x:
        segments = [(wide_x, X), *segments]
    if problem.concat_u:
        segments = [(gate, GATE), *segments]
    if not problem.dropout:
        return to_bfloat16(xp.concat([value for value, _ in segments], axis=1)), mean, rstd
    key = (seed_low, seed_high) if seed is None else (seed[0], seed[1])
    mask, dropped = 0, []
    for value, plane in segments:
        kept = philox_words(xp, rows, columns, plane, key, x) >= _word(xp, threshold)
        mask = mask | (xp.astype(kept, xp.int8) << plane)
        dropped.append(xp.where(kept, value * scale, xp.zeros_like(value)))
    return to_bfloat16(xp.concat(dropped, axis=1)), mean, rstd, xp.astype(mask, xp.int8)


def philox_words(xp: Any, rows: int, columns: int, plane: int, key: tuple[Any, Any], like: Any = None) -> Any:
    """The random word of every element: Philox4x32-10 of (row, column // 4, plane, 0), word column % 4.

    In 16-bit halves, since frameworks have no common 64-bit product. Torch's words are made where ``like`` is.
    """
    # JAX has no 64-bit integers by default, torch no arithmetic on unsigned ones.
    kind = xp.uint32 if _is_jax(xp) else xp.int64
    place = {"device": like.device} if xp.__name__.endswith("torch") and like is not None else {}
    keys = [xp.astype(xp.asarray(part, **place), kind) & _word(xp, -1) for part in key]
    blocks = columns // 4
    zero = xp.zeros((rows, blocks), dtype=kind, **place)
    counter = [
        zero + xp.astype(xp.arange(rows, **place), kind)[:, None],
        zero + xp.astype(xp.arange(blocks, **place), kind)[None, :],
        zero + plane,
        zero,
    ]

    def once(state: tuple[Any, ...]) -> tuple[Any, ...]:
        first, second, third, fourth, low, high = state
        low0, high0 = _product(first, 0xD2511F53)
        low1, high1 = _product(third, 0xCD9E8D57)
        words = (high1 ^ second ^ low, low1, high0 ^ fourth ^ high, low0)
        keys = [(part + _word(xp, step)) & _word(xp, -1) for part, step in zip((low, high), _WEYL, strict=True)]
        return (*words, *keys)

    counter = list(_repeated(xp, 10, once, (*counter, *keys))[:4])
    return xp.reshape(xp.stack(counter, axis=2), (rows, columns))


def _repeated(xp: Any, count: int, step: Callable[[Any], Any], state: tuple[Any, ...]) -> tuple[Any, ...]:
    if _is_jax(xp):
        from jax import lax  # the arrays are JAX's

        # A loop for XLA, which would take minutes over the rounds written out one after another.
        return tuple(lax.fori_loop(0, count, lambda _, values: step(values), state))
    for _ in range(count):
        state = step(state)
    return state


def _is_jax(xp: Any) -> bool:
    return str(xp.__name__) == "jax.numpy"


def _word(xp: Any, value: int) -> Any:
    """The low 32 bits as a number that an operation with words takes: JAX refuses a plain int above 2**31."""
    return np.uint32(value & _WORD) if _is_jax(xp) else value & _WORD


def _product(a: Any, factor: int) -> tuple[Any, Any]:
    """Low and high word of ``a * factor``."""
    low, high = a & _HALF, a >> 16
    f_low, f_high = factor & _HALF, factor >> 16
    bottom, left, right = low * f_low, high * f_low, low * f_high
    middle = (bottom >> 16) + (left & _HALF) + (right & _HALF)
    return ((middle & _HALF) << 16) | (bottom & _HALF), high * f_high + (left >> 16) + (right >> 16) + (middle >> 16)


def backward(
    problem: LmsdBackward,
    xp: Any,
    dy: Any,
    x: Any,
    u: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    rstd: Any,
    mask: Any,
    scale: float,
) -> tuple[Any, ...]:
    """In float32; every gradient rounded once."""
    columns = problem.x_tensor.shape[1]
    parts = [wide(xp, dy[:, at : at + columns]) for at in range(0, dy.shape[1], columns)]
    of_product = _undropped(xp, parts.pop(), mask, PRODUCT, scale)
    nothing = xp.zeros_like(of_product)
    of_gate = _undropped(xp, parts.pop(0), mask, GATE, scale) if problem.concat_u else nothing
    of_x = _undropped(xp, parts.pop(0), mask, X, scale) if problem.concat_x else nothing
    wide_u, w = wide(xp, u), wide(xp, weight)
    normal = (wide(xp, x) - mean[:, None]) * rstd[:, None]
    if problem.apply_u_silu:
        share = sigmoid(xp, wide_u)
        gate, slope = wide_u * share, wide_u * share * (1.0 - share) + share
    else:
        gate, slope = wide_u, xp.ones_like(wide_u)
    du = (of_product * (normal * w + wide(xp, bias)) + of_gate) * slope
    of_norm = of_product * gate
    scaled = w * of_norm
    first = xp.sum(normal * scaled, axis=1, keepdims=True) * (1.0 / columns)
    second = xp.sum(scaled, axis=1, keepdims=True) * (1.0 / columns)
    dx = of_x + (scaled - (normal * first + second)) * rstd[:, None]
    affine = [xp.sum(of_norm * normal, axis=0)] if problem.compute_dweight else []
    return tuple(to_bfloat16(result) for result in (dx, du, *affine, xp.sum(of_norm, axis=0)))


def _undropped(xp: Any, gradient: Any, mask: Any, bit: int, scale: float) -> Any:
    if mask is None:
        return gradient
    return xp.where((mask >> bit) & 1 != 0, gradient * scale, xp.zeros_like(gradient))
