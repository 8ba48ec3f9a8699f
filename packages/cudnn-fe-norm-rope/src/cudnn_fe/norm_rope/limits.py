"""What this family's kernels cannot count."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.targets import portable_refusal

__all__ = ["MOST_ROWS", "row_refusal"]

MOST_ROWS = 2**31 - 2**24  # counted in 32 bits, past the end by what the last blocks would have taken


def row_refusal(problem: Any, where: Device) -> str | None:
    """Why kernels of row-wise ops cannot serve a problem on a device."""
    rows = problem.inputs[0].shape[0]
    return portable_refusal(problem, where) or (
        f"it counts up to {MOST_ROWS} rows, not {rows}" if rows > MOST_ROWS else None
    )
