"""Sums of experts' rows on any GPU from SM80 up: of parts of their rows first, then of the parts, in a fixed order.

Bound by memory: a thread has a column, and several of its rows under way.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Int32, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.expert_rows import row_tile, slot_count
from cudnn_fe.grouped.dglu.portable_sums import add_column_parts, column_sum
from cudnn_fe.grouped.row_sums.op import PART_ROWS

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128


def launcher(spec: str) -> Any:
    """The jitted ``launch(stream, x, offsets, sums, parts)``; nothing depends on the architecture ``spec``."""
    del spec

    @cute.jit
    def launch(stream: CUstream, x: cute.Tensor, offsets: cute.Tensor, sums: cute.Tensor, parts: cute.Tensor) -> None:
        rows = Int32(x.shape[0])
        # Slots count rows, of which there may be more than a grid's second dim takes.
        grid = (slot_count(offsets, rows, PART_ROWS), cute.ceil_div(Int32(x.shape[1]), _THREADS), 1)
        _add_rows(x, offsets, parts).launch(grid=grid, block=(_THREADS, 1, 1), stream=stream)
        wide = cute.make_layout((*sums.shape, 1), stride=(*sums.stride, 1))
        add_column_parts(stream, parts, offsets, rows, cute.make_tensor(sums.iterator, wide), PART_ROWS)

    return launch


@cute.kernel
def _add_rows(x: cute.Tensor, offsets: cute.Tensor, parts: cute.Tensor) -> None:
    slot, group, _ = cute.arch.block_idx()
    tile = row_tile(offsets, Int32(x.shape[0]), slot, PART_ROWS)
    column = group * _THREADS + cute.arch.thread_idx()[0]
    rows = cutlass.min(tile.rows, Int32(PART_ROWS))
    if tile.expert < Int32(offsets.shape[0]) and rows > 0 and column < Int32(x.shape[1]):
        parts[slot, column] = column_sum(x, tile.first, 1, rows, column)


def fake_arguments(spec: str) -> tuple[Any, ...]:
    """Symbolic stand-ins for the tensors of a launch."""
    del spec
    floats = [fake_tensor("float32", -1, rank=2, alignment=4) for _ in range(3)]
    return (floats[0], fake_tensor("int32", 0, rank=1, alignment=4), *floats[1:])
