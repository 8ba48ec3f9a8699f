"""The definition of the vision encoder's RoPE backward, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.norm_rope.arrays import exact_product, to_bfloat16, wide

if TYPE_CHECKING:
    from cudnn_fe.norm_rope.vision_rope.op import VisionRopeBackward

__all__ = ["vision_rope_backward"]


def vision_rope_backward(
    problem: VisionRopeBackward, xp: Any, grad_q: Any, grad_k: Any, grad_v: Any, cosine: Any, sine: Any
) -> tuple[Any]:
    """Pairs 32 channels apart turned by minus their angle, each product rounded on its own."""
    turned = [_turn_back(xp, grad, cosine, sine) for grad in (grad_q, grad_k)]
    # As integers: bits are what is copied, and not every NumPy promotes bfloat16 with itself.
    parts = [xp.reshape(part.view(xp.int16), (problem.tokens, 1024)) for part in (*turned, grad_v)]
    return (xp.concat(parts, axis=1).view(grad_v.dtype),)


def _turn_back(xp: Any, grad: Any, cosine: Any, sine: Any) -> Any:
    a, b = wide(xp, grad[..., :32]), wide(xp, grad[..., 32:])
    cosine, sine = xp.broadcast_to(cosine, a.shape), xp.broadcast_to(sine, a.shape)
    first = exact_product(xp, a, cosine) + exact_product(xp, b, sine)
    second = exact_product(xp, b, cosine) - exact_product(xp, a, sine)
    return to_bfloat16(xp.concat((first, second), axis=-1))
