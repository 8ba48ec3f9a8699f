"""A tensor that the Hopper GEMM's epilogue reads: TMA brings its blocks to shared memory ahead of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from cudnn_fe.core.cute.epilogue_sm90 import Output, load_fragment
from cudnn_fe.core.cute.gemm_layout import TilePlace
from cudnn_fe.core.cute.staged import Staged
from cudnn_fe.core.cute.tma import TmaTile, tile_at

__all__ = ["EpilogueSource"]


@dataclass(frozen=True)
class EpilogueSource(Staged):
    """Buffers for blocks of one tensor, and a barrier for each of them.

    Attributes:
        described: How the blocks lie.
        load: Where they come from.
        buffers: Room for them in shared memory.
        barriers: Each completes a phase when its buffer is filled.
        count: How many there are of both.
    """

    described: Output
    load: TmaTile
    buffers: cute.Tensor
    barriers: cute.Pointer
    count: int

    @staticmethod
    def of(described: Output, load: TmaTile, smem: Any, count: int) -> EpilogueSource:
        """Room for ``count`` blocks."""
        barriers = smem.allocate_array(cutlass.Int64, count, byte_alignment=16)
        layout = described.smem_layout(count)
        buffers = smem.allocate_tensor(described.element, layout.outer, 1024, swizzle=layout.inner)
        return EpilogueSource(described, load, buffers, barriers, count)

    def prepare(self) -> None:
        """One thread's work before anything else; a barrier of the whole block must follow."""
        for index in range(self.count):
            cute.arch.mbarrier_init(self.barriers + index, 1)

    def start(self, at: TilePlace, block: tuple[Int32, Int32], place: Int32) -> None:
        """One warp's load of a block into the buffer at `place`; rows behind the group's last arrive as zeros."""
        corner = (at.out_row + 64 * block[0], block[1] * self.described.columns, *at.out)
        tile = cute.group_modes(tile_at(self.load.tensor, corner, (64, self.described.columns)), 0, 2)
        buffers = cute.group_modes(self.buffers, 0, 2)
        smem, gmem = cpasync.tma_partition(self.load.atom, 0, cute.make_layout(1), buffers, tile)
        barrier = self.barriers + place
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.described.bytes)
        cute.copy(self.load.atom, gmem, smem[None, place], tma_bar_ptr=barrier)

    def fragment(self, place: Int32, phase: int, thread: Int32) -> cute.Tensor:
        """The thread's part of the block in the buffer at `place`, once it is there."""
        cute.arch.mbarrier_wait(self.barriers + place, phase)
        return load_fragment(self.described, self.buffers[None, None, place], thread)
