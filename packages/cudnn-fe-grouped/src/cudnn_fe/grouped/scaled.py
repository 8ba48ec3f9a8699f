"""What belongs to the block-scaled modes: refused, with the error that the operands' types deserve."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.grouped.forms import is_narrow

__all__ = ["require_unscaled"]


def require_unscaled(a_tensor: Any, **given: tuple[Any, Any]) -> None:
    """Raises unless every option of the block-scaled modes is at its default.

    Args:
        a_tensor: Its type says whether the mode is meant.
        **given: Of each option, what was given and its default.
    """
    scaled = is_narrow(a_tensor, "a_tensor")
    for name, (value, default) in given.items():
        if value is default or (isinstance(value, int | float | str) and value == default):
            continue
        shown = repr(value) if isinstance(value, int | float | str) else type(value).__name__
        kind = NotYetSupportedError if scaled else OptionError
        raise kind(
            name,
            got=shown,
            wanted=f"{default!r} without scale factors",
            remedy="dequantise the operands to bfloat16" if scaled else "leave it at its default",
        )
