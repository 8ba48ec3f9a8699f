"""An op's derivative rule, written once for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        with_options: Whether ``backward`` takes the call's options, as pairs, after these.
    """

    name: str
    save: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
    backward: Callable[..., tuple[Any, ...]]
    explicit: str
    with_options: bool = False

    def pull_back(
        self,
        saved: tuple[Any, ...],
        cotangents: tuple[Any, ...],
        scalars: tuple[float, ...],
        needed: tuple[bool, ...],
        backend: str | None,
        options: tuple[tuple[str, Any], ...],
    ) -> tuple[Any, ...]:
        """Call ``backward`` with what it takes."""
        more = (options,) if self.with_options else ()
        return self.backward(saved, cotangents, scalars, needed, backend, *more)

    def check(self, dtypes: Iterable[Any]) -> None:
        """Raises NotYetSupportedError for FP8 operands: a gradient has its operand's type, and FP8 would ruin it.

        Args:
            dtypes: Types of the operands that need a gradient.
        """
        for given in dtypes:
            if dtype(given).is_fp8:
                raise NotYetSupportedError(
                    self.name,
                    got=f"an operand of {dtype(given)} that needs a gradient",
                    wanted="float32, float16 or bfloat16 operands under automatic differentiation",
                    remedy=f"call {self.explicit}, which returns bfloat16 gradients",
                )
