"""What the weight gradient of quantised operands is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_fe.grouped.kernel_spec import WgradSpec
from cudnn_fe.grouped.scaled.product_spec import Backend, CodesSpec

__all__ = ["ScaledWgradSpec"]


@dataclass(frozen=True, slots=True)
class ScaledWgradSpec:
    """Dequantise A and B to bfloat16 and sum their products over the rows of each expert.

    Attributes:
        element: Element format.
        scale: Scale format.
        block: Elements per scale.
        a: A (h, t), whose K is t.
        b: B (t, i).
        ragged: Whether an expert's part of an operand that is contiguous along t is compact by itself.
        backend: Whose main loop multiplies.
        product: The sums in bfloat16.
    """

    element: str
    scale: str
    block: int
    a: CodesSpec
    b: CodesSpec
    ragged: bool
    backend: Backend
    product: WgradSpec
