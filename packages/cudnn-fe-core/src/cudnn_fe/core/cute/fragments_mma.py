"""Fragments of mma.sync from shared-memory tiles, for a whole warp at a time.

Below, lane 4g + t holds row g (of M or N) and word t (of K); a word is two 16-bit elements or one TF32.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from cudnn_fe.core.cute.loaders_plain import OperandPlan, swizzled
from cudnn_fe.core.cute.ptx_base import load_matrix, load_shared, round_to_tf32

__all__ = ["read_a", "read_b"]


def read_a(plan: OperandPlan, shared: Int32, row: Any, step: int, lane: Int32) -> list[Int32]:
    """The A fragment of 16 rows: (row g, word t), (g + 8, t), (g, t + 4), (g + 8, t + 4)."""
    low, high = lane % 8 + (lane // 8 % 2) * 8, lane // 16
    return _read(plan, shared, row, step, lane, row_lane=low, k_half=high, transposed=(high, lane // 8 % 2))


def read_b(plan: OperandPlan, shared: Int32, row: Any, step: int, lane: Int32) -> list[Int32]:
    """The B fragments of two times 8 rows: (row g, word t), (g, t + 4)."""
    high, low = lane // 16, lane // 8 % 2
    words = _read(plan, shared, row, step, lane, row_lane=lane % 8 + high * 8, k_half=low, transposed=(low, high))
    if plan.major == "mn" and plan.kind == "tf32":
        words = [words[0], words[2], words[1], words[3]]
    return words


def _read(
    plan: OperandPlan, shared: Int32, row: Any, step: int, lane: Int32, *, row_lane: Any, k_half: Any, transposed: Any
) -> list[Int32]:
    """Four words of 16 rows by 32 bytes of K.

    Args:
        plan: The operand.
        shared: Address of its tile.
        row: First row.
        step: Which 32 bytes of K.
        lane: Lane of the warp.
        row_lane: K-major: the row whose 16 bytes this lane points ldmatrix at.
        k_half: K-major: which 16 bytes of K.
        transposed: MN-major: which 8 of the 16 K, and which 8 of the 16 rows, this lane points ldmatrix at.
    """
    if plan.major == "k":
        address = shared + (row + row_lane) * plan.pitch + swizzled(step * 32 + k_half * 16, row_lane)
        words = load_matrix(address, transpose=False)
    elif plan.kind == "tf32":
        # ldmatrix transposes 16-bit elements only.
        address = shared + (step * 8 + lane % 4) * plan.pitch + (row + lane // 4) * 4
        words = [
            load_shared(address + half * 4 * plan.pitch + eight * 32, 1)[0] for half in range(2) for eight in range(2)
        ]
    else:
        k_lane = step * 16 + transposed[0] * 8 + lane % 8
        words = load_matrix(shared + k_lane * plan.pitch + (row + transposed[1] * 8) * 2, transpose=True)
    if plan.kind == "tf32":
        words = [round_to_tf32(word) for word in words]
    return words
