"""The definition of tail RoPE, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.norm_rope.arrays import exact_product, fused_multiply_add, to_bfloat16, wide

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.rope_tail.op import TailRope

__all__ = ["rotate_tail", "tail_rope"]


def tail_rope(problem: TailRope, xp: Any, x: Any, cosine: Any, sine: Any) -> tuple[Any]:
    """Adjacent pairs of the last 64 channels, each turned by its angle."""
    if problem.x.ndim == 3:
        cosine, sine = cosine[:, None, :], sine[:, None, :]
    return (rotate_tail(xp, x, cosine, sine),)


def rotate_tail(xp: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """``x`` with its last 64 channels rotated; the tables (..., 32) broadcast against its leading dims."""
    *rows, channels = x.shape
    pairs = xp.reshape(wide(xp, x[..., channels - 64 :]), (*rows, 32, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    cosine, sine = xp.broadcast_to(cosine, a.shape), xp.broadcast_to(sine, a.shape)
    first = fused_multiply_add(xp, a, cosine, -exact_product(xp, b, sine))
    second = fused_multiply_add(xp, b, cosine, exact_product(xp, a, sine))
    turned = to_bfloat16(xp.reshape(xp.stack((first, second), axis=-1), (*rows, 64)))
    return _concatenate(xp, x[..., : channels - 64], turned)


def _concatenate(xp: Any, left: Any, right: Any) -> Any:
    # As integers: NumPy does not promote bfloat16 with itself in every release, and bits are what is copied.
    joined = xp.concat((left.view(xp.int16), right.view(xp.int16)), axis=-1)
    return joined.view(right.dtype)
