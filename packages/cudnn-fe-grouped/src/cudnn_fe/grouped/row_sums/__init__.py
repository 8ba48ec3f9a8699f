"""The sum of each expert's rows: a step of the derivatives, of biases and of scales."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.grouped.row_sums.op import ROW_SUMS

__all__ = ["row_sums"]


def row_sums(x: Any, offsets: Any, *, backend: str | None = None) -> Any:
    """(L, X) float32: the sum of each expert's rows.

    Args:
        x: (M, X) float32, row-major.
        offsets: (L,) ends of the experts' rows.
        backend: None or a name.
    """
    return call(ROW_SUMS, (x, offsets), (), backend=backend)[0]
