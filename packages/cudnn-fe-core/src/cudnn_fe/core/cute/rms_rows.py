"""RMS-normalised rows of 16-bit elements: what fused norms share, from memory to scaled vectors in registers.

A block takes one row, or as many narrow ones as fit, and each of its threads the same vectors of x and of the weight.
Blocks in great number, some loading while others compute, reach the memory's speed; blocks that go from row to row with
the next one under way measured 3 to 6 % less. A row too wide for one block's registers is shared by the CTAs of a
cluster; one too wide for these stays in shared memory between its two passes, or is read twice where that is too small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.bfloat16_pairs import widen_pairs
from cudnn_fe.core.cute.exact import reciprocal_square_root
from cudnn_fe.core.cute.ptx_base import load_shared
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import (
    VECTOR,
    copy_words_async,
    load_vectors,
    nth_vector,
    row_address,
    wait_for_copies,
)
from cudnn_fe.core.row_plan import RowPlan

__all__ = ["RmsRows"]


class RmsRows:
    """How blocks share rows.

    Args:
        columns: Elements of a row, a multiple of 8.
        width: Bytes of one access to x and the weight.
        plan: Threads, registers and shared memory.
    """

    def __init__(self, columns: int, width: int, plan: RowPlan) -> None:
        self.columns, self.width, self.plan = columns, width, plan
        self.per_row = columns // VECTOR
        self.tile = plan.threads * plan.vectors
        self.groups = RowGroups(plan.threads, plan.groups, plan.ctas)
        self.shared_bytes = plan.kept_bytes + 4 * self.groups.shared_words()

    def launch(self, kernel: Any, rows: Any, stream: Any) -> None:
        """Launch a bound kernel for so many rows, as many blocks beside one another as registers allow."""
        ctas = self.plan.ctas
        kernel.launch(
            grid=(((rows - 1) // self.plan.groups + 1) * ctas, 1, 1),
            block=(self.plan.block, 1, 1),
            cluster=(ctas, 1, 1) if ctas > 1 else None,
            stream=stream,
            min_blocks_per_mp=self.plan.resident // self.plan.block,
            preferred_smem_carveout=-1,  # the driver's choice; without it the compiler asks a GPU
        )

    @cute.jit
    def each_row(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        eps: Float32,
        shared: Int32,
        finish: cutlass.Constexpr[Callable[..., None]],
        close: cutlass.Constexpr[Callable[..., None]],
    ) -> None:
        """Normalise this thread's part of its row; every thread of the block, or cluster, takes part.

        Args:
            x: (M, N) bfloat16.
            weight: (N,) bfloat16.
            eps: Added to the mean square.
            shared: Address of `shared_bytes` bytes.
            finish: Called as ``finish(row, vector, values, factors, scale, valid)`` with the values and
                weights of `RowPlan.run` vectors from this one on, eight each, both fp32, and the row's 1 / rms. Lanes
                of a warp call it together, whatever ``valid`` says.
            close: Called after a row's last vector as ``close(row, part, lane, valid)``: the number of this warp, or
                group of fewer threads, in the row, and this thread's in the row, or in the CTA's part of it.
        """
        plan = self.plan
        words, weights = (cute.make_rmem_tensor(4 * plan.vectors, Int32) for _ in range(2))
        group, lane = self.groups.place()
        row = Int64(cute.arch.block_idx()[0] // plan.ctas) * plan.groups + group
        own = Int32(shared) + Int32(cute.arch.thread_idx()[0]) * 16
        start, end = Int32(lane) * plan.run, Int32(self.per_row)
        rank = Int32(cute.arch.block_idx()[0] % plan.ctas)
        if cutlass.const_expr(plan.ctas > 1):
            start += rank * plan.part
            end = cutlass.min(end, (rank + 1) * plan.part)
            self.groups.start(shared + plan.kept_bytes)
        limit = cutlass.select_(row < Int64(x.shape[0]), end, Int32(0))
        if cutlass.const_expr(plan.tiles > 1 and plan.kept):
            for tile in cutlass.range_constexpr(plan.tiles):
                self._fetch(x, row, own, tile, start, limit)
            wait_for_copies()
        total = Float32(0.0)
        for tile in cutlass.range(plan.tiles, unroll=plan.unroll):
            self._take(words, x, row, own, tile, start, limit)
            if cutlass.const_expr(plan.tiles == 1):
                self._weights(weights, weight, start, end)
            total += self._squares(words)
        ahead = plan.tiles > 1 and plan.kept  # the next tile's weights come while this one is finished
        if cutlass.const_expr(ahead):
            later = cute.make_rmem_tensor(4 * plan.vectors, Int32)
            self._weights(later, weight, start, end)
        if cutlass.const_expr(plan.ctas > 1):
            self.groups.wait_for_others()
        (total,) = self.groups.sum([total], shared + plan.kept_bytes, Int32(0))
        scale = reciprocal_square_root(total * Float32(1.0 / self.columns) + eps)
        for tile in cutlass.range(plan.tiles, unroll=plan.unroll):
            at = start + tile * self.tile
            if cutlass.const_expr(ahead):
                for index in cutlass.range_constexpr(4 * plan.vectors):
                    weights[index] = later[index]
                self._weights(later, weight, at + self.tile, end)
            elif cutlass.const_expr(plan.tiles > 1):
                self._weights(weights, weight, at, end)
            if cutlass.const_expr(plan.tiles > 1):
                self._take(words, x, row, own, tile, start, limit)
            for index in cutlass.range_constexpr(0, plan.vectors, plan.run):
                vector = at + nth_vector(index, plan.threads, plan.run)
                values, factors = (
                    widen_pairs([given[index * 4 + part] for part in range(4 * plan.run)]) for given in (words, weights)
                )
                finish(row, vector, values, factors, scale, Int32(vector < limit))
        part = rank * (plan.parts // plan.ctas) + lane // 32
        close(row, part, lane, Int32(row < Int64(x.shape[0])))

    @cute.jit
    def _weights(self, into: cute.Tensor, weight: cute.Tensor, first: Int32, end: Int32) -> None:
        """This thread's weights of the tile that begins at its vector ``first``."""
        load_vectors(into, weight.iterator.toint(), first, self.plan.threads, end, self.width, self.plan.run)

    @cute.jit
    def _fetch(self, x: cute.Tensor, row: Int64, own: Int32, tile: Int32, start: Int32, limit: Int32) -> None:
        """Begin to copy a tile of a row to this thread's words; zeros at and past ``limit``."""
        for index in cutlass.range_constexpr(self.plan.vectors):
            vector = start + tile * self.tile + nth_vector(index, self.plan.threads, self.plan.run)
            target = own + (tile * self.plan.vectors + index) * (16 * self.plan.block)
            copy_words_async(target, row_address(x, row) + Int64(vector) * 16, self.width, Int32(vector < limit))

    @cute.jit
    def _take(
        self, words: cute.Tensor, x: cute.Tensor, row: Int64, own: Int32, tile: Int32, start: Int32, limit: Int32
    ) -> None:
        """A tile of a row into registers: from this thread's words where the row is kept, else from memory."""
        if cutlass.const_expr(self.plan.tiles > 1 and self.plan.kept):
            for index in cutlass.range_constexpr(self.plan.vectors):
                place = own + (tile * self.plan.vectors + index) * (16 * self.plan.block)
                for part, word in enumerate(load_shared(place, 4)):
                    words[index * 4 + part] = word
        else:
            first = start + tile * self.tile
            load_vectors(words, row_address(x, row), first, self.plan.threads, limit, self.width, self.plan.run)

    @cute.jit
    def _squares(self, words: cute.Tensor) -> Float32:
        total = Float32(0.0)
        for index in cutlass.range_constexpr(self.plan.vectors):
            for value in widen_pairs([words[index * 4 + part] for part in range(4)]):
                total += value * value
        return total
