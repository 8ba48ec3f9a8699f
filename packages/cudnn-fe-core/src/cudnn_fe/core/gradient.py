"""An op's derivative rule, written once for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError

__all__ = ["Gradient"]


@dataclass(frozen=True)
class Gradient:
    """A vector-Jacobian product.

    Attributes:
        name: The op, for messages.
        save: ``save(operands, outputs)``: what the backward call needs.
        backward: ``backward(saved, cotangents, scalars, needed, backend)``: one gradient per operand, None where
            it is not needed. A cotangent that is None is zero.
        explicit: The public function that gives gradients of operands that cannot carry them themselves.
    """

    name: str
    save: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
    backward: Callable[
        [tuple[Any, ...], tuple[Any, ...], tuple[float, ...], tuple[bool, ...], str | None], tuple[Any, ...]
    ]
    explicit: str

    def check(self, dtypes: tuple[Any, ...]) -> None:
        """Raises NotYetSupportedError for FP8 operands: a gradient has its operand's type, and FP8 would ruin it."""
        for given in dtypes:
            if dtype(given).is_fp8:
                raise NotYetSupportedError(
                    self.name,
                    got=f"an operand of {dtype(given)} that needs a gradient",
                    wanted="float32, float16 or bfloat16 operands under automatic differentiation",
                    remedy=f"call {self.explicit}, which returns bfloat16 gradients",
                )
