"""The portable GEMM main loop: 128 x 128 tiles, four warps of 64 x 64, mma.sync with fp32 accumulators.

Sizes are such that two blocks fit in the shared memory of an SM80 or SM90 and one in that of an SM86, SM89 or SM120.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from cudnn_fe.core.cute.fragments_mma import read_a, read_b
from cudnn_fe.core.cute.loaders_plain import THREADS, TILE_ROWS, OperandLoader, OperandPlan
from cudnn_fe.core.cute.ptx_base import mma

__all__ = ["ACCUMULATORS", "MainLoop"]

ACCUMULATORS = TILE_ROWS * TILE_ROWS // THREADS
_STEPS = 2  # MMA steps of 32 bytes of K in a tile
_FRAGMENT_WORDS = 4 * 4 + 8 * 2


@dataclass(frozen=True)
class MainLoop:
    """A main loop for two operands of one dtype.

    Attributes:
        a: Plan of A, (M, K, L).
        b: Plan of B, (N, K, L).
    """

    a: OperandPlan
    b: OperandPlan

    @property
    def asynchronous(self) -> bool:
        """Whether no operand passes through registers."""
        return self.a.asynchronous and self.b.asynchronous

    @property
    def stages(self) -> int:
        """Tiles of each operand in shared memory. Loads through registers are in flight for one tile only."""
        return 4 if self.asynchronous else 2

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one tile of both operands."""
        return self.a.tile_bytes + self.b.tile_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the loop."""
        return self.stages * self.stage_bytes

    @property
    def scale(self) -> float:
        """Factor that the accumulators lack."""
        return self.a.scale * self.b.scale

    @cute.jit
    def run(self, a: cutlass.Constexpr, b: cutlass.Constexpr, shared: Int32, sums: cute.Tensor) -> None:
        """Compute a tile's sums; on return no copy is in flight and every thread has left the shared memory.

        Args:
            a: The `MatrixPart` of A from the tile's first row on, K its columns.
            b: Likewise of B, with as many columns; none give zeros.
            shared: Address of `shared_bytes` of shared memory, 16-byte aligned.
            sums: `ACCUMULATORS` fp32 registers, MMA tile by MMA tile: four of 16 rows, times eight of 8 columns.
        """
        thread = cute.arch.thread_idx()[0]
        loaders = OperandLoader(self.a, a, thread), OperandLoader(self.b, b, thread)
        sums.fill(0.0)
        for early in cutlass.range_constexpr(self.stages - 1):
            if cutlass.const_expr(early > 0):
                cute.arch.cp_async_commit_group()
            for piece in cutlass.range_constexpr(_STEPS):
                self._finish(loaders, self._begin(loaders, Int32(early), shared, piece), shared, early, piece)
        self._await_tile()
        tiles = (a.columns + (self.a.depth - 1)) // self.a.depth
        sooner = cute.make_rmem_tensor(_FRAGMENT_WORDS, Int32)
        later = cute.make_rmem_tensor(_FRAGMENT_WORDS, Int32)
        if cutlass.const_expr(self.asynchronous):
            self._read(shared, 0, thread, 0, sooner)
        for index in cutlass.range(tiles, unroll=1):
            ahead = index + (self.stages - 1)
            if cutlass.const_expr(self.asynchronous):
                # Fragments are read one MMA step ahead. What the last of these reads brings is never used.
                self._read(shared, index, thread, 1, later)
                for piece in cutlass.range_constexpr(_STEPS):
                    self._begin(loaders, ahead, shared, piece)
                self._multiply(sooner, sums)
                self._await_tile()
                self._read(shared, index + 1, thread, 0, sooner)
                self._multiply(later, sums)
            else:
                # Words in flight take the registers of a second set of fragments.
                for step in cutlass.range_constexpr(_STEPS):
                    words = self._begin(loaders, ahead, shared, step)
                    self._read(shared, index, thread, step, later)
                    self._multiply(later, sums)
                    self._finish(loaders, words, shared, ahead, step)
                self._await_tile()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    def _await_tile(self) -> None:
        """Close the copies begun last; on return those of the next tile have landed, and the tile before is free."""
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(self.stages - 2)
        cute.arch.sync_threads()

    def _place(self, shared: Int32, tile: Any) -> tuple[Int32, Int32]:
        stage = shared + (Int32(tile) & (self.stages - 1)) * self.stage_bytes
        return stage, stage + self.a.tile_bytes

    def _begin(self, loaders: Any, tile: Int32, shared: Int32, piece: int) -> Any:
        places = self._place(shared, tile)
        return [
            loader.begin(tile, place, _share(loader.copies, piece))
            for loader, place in zip(loaders, places, strict=True)
        ]

    def _finish(self, loaders: Any, words: Any, shared: Int32, tile: Any, piece: int) -> None:
        for loader, place, loaded in zip(loaders, self._place(shared, tile), words, strict=True):
            loader.finish(loaded, place, _share(loader.copies, piece))

    def _read(self, shared: Int32, tile: Any, thread: Int32, step: int, fragments: Any) -> None:
        """Read a warp's fragments of one MMA step: four of A (16 rows), then eight of B (8 rows)."""
        warp, lane = thread // 32, thread % 32
        a_shared, b_shared = self._place(shared, tile)
        words = []
        for block in range(4):
            words += read_a(self.a, a_shared, (warp // 2) * 64 + block * 16, step, lane)
        for block in range(4):
            words += read_b(self.b, b_shared, (warp % 2) * 64 + block * 16, step, lane)
        for index, word in enumerate(words):
            fragments[index] = word

    def _multiply(self, fragments: Any, sums: Any) -> None:
        for column in range(8):
            b_words = [fragments[16 + column * 2 + index] for index in range(2)]
            for row in range(4):
                a_words = [fragments[row * 4 + index] for index in range(4)]
                first = (row * 8 + column) * 4
                added = mma(self.a.kind, a_words, b_words, [sums[first + index] for index in range(4)])
                for index in range(4):
                    sums[first + index] = added[index]


def _share(copies: int, piece: int) -> range:
    """The copies that are interleaved with MMA step ``piece``: half of them, or the few there are with the first."""
    if copies <= _STEPS:
        return range(copies if piece == 0 else 0)
    return range(copies * piece // _STEPS, copies * (piece + 1) // _STEPS)
