"""Rotary embeddings on fp32 values in registers."""

from __future__ import annotations

from typing import Any

from cutlass import Float32

from cudnn_fe.core.cute.exact import add, fused_multiply_add, multiply, subtract

__all__ = ["rotate_halves_back", "rotate_pairs"]


def rotate_pairs(values: list[Any], cosines: list[Any], sines: list[Any]) -> list[Float32]:
    """Adjacent pairs turned by their angles: a fused multiply-add over one rounded product each."""
    turned = []
    for a, b, c, s in zip(values[::2], values[1::2], cosines, sines, strict=True):
        turned.append(fused_multiply_add(a, c, -multiply(b, s)))
        turned.append(fused_multiply_add(b, c, multiply(a, s)))
    return turned


def rotate_halves_back(a: Any, b: Any, c: Any, s: Any) -> tuple[Float32, Float32]:
    """One pair turned by minus its angle; both products rounded before they are added."""
    return add(multiply(a, c), multiply(b, s)), subtract(multiply(b, c), multiply(a, s))
