"""Element types of the DSL by the project's names."""

from __future__ import annotations

from typing import Any

import cutlass

from cudnn_fe.core.dtypes import dtype

__all__ = ["element_type", "kind_name"]


def element_type(name: str) -> Any:
    """The DSL's type of the element type called ``name``; FP4 always comes as pairs, a byte each."""
    kind = dtype(name)
    return cutlass.Float4E2M1FNx2 if kind.bits == 4 else getattr(cutlass, kind.cutlass)


def kind_name(kind: Any) -> str:
    """The project's name of one of the DSL's types."""
    return dtype(kind).name
