"""Products of the fragments that a warp's lanes hold of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_fe_testkit.ptx_values import unpacked

__all__ = ["multiplied", "places"]

Array = np.ndarray[Any, Any]
_LANE = np.arange(32)
_GROUP, _MEMBER = _LANE // 4, _LANE % 4


def places(registers: int, each: int, *, rows: int) -> tuple[Array, Array]:
    """Row and place along K of what a warp's lanes hold of an operand: (registers, each, 32) each.

    Args:
        registers: Of a lane.
        each: Elements in one, neighbours along K.
        rows: 16 of the first operand, whose registers take turns between both halves; 8 of the second.
    """
    register = np.arange(registers)[:, None, None]
    element = np.arange(each)[None, :, None]
    halves = rows // 8
    row = _GROUP + 8 * (register % halves) + 0 * element
    return row, _MEMBER * each + element + 4 * each * (register // halves)


def multiplied(first: list[Array], second: list[Array], total: Array, kind: str, depth: int) -> Array:
    """``a b + c`` of warps, m16n8k(depth): registers (W, 32) in, sums (4, W, 32) in and out; summed in float64."""
    operands = []
    for registers, rows in ((first, 16), (second, 8)):
        values = np.stack([unpacked(x, kind) for x in registers])  # (registers, each, W, 32)
        row, place = places(len(registers), values.shape[1], rows=rows)
        whole = np.zeros((values.shape[2], rows, depth))
        whole[:, row, place] = values.transpose(2, 0, 1, 3)
        operands.append(whole)
    product = operands[0] @ operands[1].transpose(0, 2, 1)
    index = np.arange(4)[:, None]
    found: Array = product[:, _GROUP + 8 * (index // 2), 2 * _MEMBER + index % 2].transpose(1, 0, 2)
    return (found + total).astype(np.float32)
