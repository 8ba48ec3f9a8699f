"""What the documented names with a ``backend="frost"`` argument share: the argument, and no hidden derivatives."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.require import require_one_of

__all__ = ["check_frost", "served_by"]


def check_frost(backend: Any, **tensors: Any) -> None:
    """Raises OptionError unless ``backend`` is ``"frost"`` and no tensor asks for a gradient.

    The name selects whatever serves the device; `backend` of the arch-neutral functions chooses among that.
    """
    require_one_of(backend, "backend", ("frost",))
    for name, tensor in tensors.items():
        if getattr(tensor, "requires_grad", False):
            raise OptionError(
                name,
                got="a tensor that requires a gradient",
                wanted="one that does not: no derivative is recorded",
                remedy="detach it",
            )


def served_by(backend: str | None) -> str | None:
    """The backend that a function with both meanings was asked for: ``"frost"`` names whatever serves the device."""
    return None if backend == "frost" else backend
