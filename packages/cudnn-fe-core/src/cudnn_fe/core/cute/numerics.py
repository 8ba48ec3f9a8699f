"""Element types of the DSL by the project's names."""

from __future__ import annotations

from typing import Any

import cutlass

from cudnn_fe.core.dtypes import dtype

__all__ = ["element_type"]


def element_type(name: str) -> Any:
    """The DSL's type of the element type called ``name``."""
    return getattr(cutlass, dtype(name).cutlass)
