"""RMS-normalised rows of 16-bit elements: the loop that fused norms share, from memory to scaled vectors in registers.

A thread's vectors pass through words of shared memory that are its own: they are filled asynchronously, one row ahead
of the arithmetic, without registers and without barriers. A row too wide for the registers stays there between its two
passes; a row too wide for one CTA is shared by the CTAs of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.bfloat16_pairs import widen_pairs
from cudnn_fe.core.cute.exact import reciprocal_square_root
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import (
    VECTOR,
    copy_words_async,
    load_vectors,
    load_words,
    row_address,
    wait_for_copies,
)
from cudnn_fe.core.row_plan import RowPlan

__all__ = ["RmsRows"]

_RESIDENT = 1024  # threads of a multiprocessor


class RmsRows:
    """How a block goes through rows.

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
        self.whole = self.per_row == plan.ctas * plan.tiles * self.tile  # no thread has vectors past the row's end
        self.weights_kept = plan.tiles == 1  # in fp32
        self.reduction = plan.kept_bytes * (3 if self.weights_kept else 1)
        self.shared_bytes = self.reduction + 4 * self.groups.shared_words()

    def launch(self, kernel: Any, blocks: Any, stream: Any) -> None:
        """Launch a bound kernel on ``blocks`` blocks, or clusters, as many beside one another as registers allow."""
        ctas = self.plan.ctas
        kernel.launch(
            grid=(blocks * ctas, 1, 1),
            block=(self.plan.block, 1, 1),
            cluster=(ctas, 1, 1) if ctas > 1 else None,
            stream=stream,
            min_blocks_per_mp=_RESIDENT // self.plan.block,
            preferred_smem_carveout=-1,  # the driver's choice; without it the compiler asks a GPU
        )

    @cute.jit
    def each(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        first: Int64,
        rows: Int32,
        eps: Float32,
        shared: Int32,
        finish: cutlass.Constexpr[Callable[..., None]],
    ) -> Int32:
        """Normalise ``rows`` rows from ``first`` on; every thread of the block, or cluster, takes part.

        Args:
            x: (M, N) bfloat16.
            weight: (N,) bfloat16.
            first: A row of x.
            rows: At least one.
            eps: Added to the mean square.
            shared: Address of `shared_bytes` bytes.
            finish: Called as ``finish(row, vector, values, factors, scale, valid)`` with a vector's eight values and
                weights, both fp32, and the row's 1 / rms. Lanes of a warp call it together, whatever ``valid`` says.

        Returns:
            The slot for the next reduction with `groups`, ``self.reduction`` bytes behind ``shared``.
        """
        plan = self.plan
        words = cute.make_rmem_tensor(4 * plan.vectors, Int32)
        group, lane = self.groups.place()
        own = Int32(shared) + Int32(cute.arch.thread_idx()[0]) * 16
        reduction = Int32(shared) + self.reduction
        start, end = Int32(lane), Int32(self.per_row)
        if cutlass.const_expr(plan.ctas > 1):
            rank = Int32(cute.arch.block_in_cluster_idx()[0])
            start += rank * plan.part
            end = cutlass.min(end, (rank + 1) * plan.part)
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()  # a CTA's shared memory may be written from here on
        if cutlass.const_expr(plan.kept):
            for tile in cutlass.range_constexpr(plan.tiles):
                self._fetch(x, first + group, own, tile, start, cutlass.select_(group < rows, end, Int32(0)))
        if cutlass.const_expr(self.weights_kept):
            self._keep_weights(weight, own, start, end)
        turns = (rows + plan.groups - 1) // plan.groups
        for turn in cutlass.range(turns, unroll=1):
            inside = turn * plan.groups + group
            row = first + inside
            there = Int32(inside < rows)
            limit = cutlass.select_(inside < rows, end, Int32(0))
            limit_of_next = cutlass.select_(inside + plan.groups < rows, end, Int32(0))
            if cutlass.const_expr(plan.kept):
                wait_for_copies()
            total = Float32(0.0)
            for tile in cutlass.range(plan.tiles, unroll=1):
                self._take(words, x, row, own, tile, start, limit)
                total += self._squares(words)
            if cutlass.const_expr(plan.kept and plan.tiles == 1):
                self._fetch(x, row + plan.groups, own, 0, start, limit_of_next)
            (total,) = self.groups.sum([total], reduction, turn & 1)
            scale = reciprocal_square_root(total * Float32(1.0 / self.columns) + eps)
            for tile in cutlass.range(plan.tiles, unroll=1):
                at = start + tile * self.tile
                if cutlass.const_expr(plan.tiles > 1):
                    self._take(words, x, row, own, tile, start, limit)
                factors = [self._weights(weight, own, index, at, end) for index in range(plan.vectors)]
                for index in cutlass.range_constexpr(plan.vectors):
                    vector = at + index * plan.threads
                    values = widen_pairs([words[index * 4 + part] for part in range(4)])
                    valid = there if self.whole else Int32(vector < limit)
                    finish(row, vector, values, factors[index](), scale, valid)
                if cutlass.const_expr(plan.kept and plan.tiles > 1):
                    self._fetch(x, row + plan.groups, own, tile, start, limit_of_next)
        return turns & 1

    @cute.jit
    def _fetch(self, x: cute.Tensor, row: Int64, own: Int32, tile: Int32, start: Int32, limit: Int32) -> None:
        """Begin to copy a tile of a row to this thread's words; zeros at and past ``limit``."""
        for index in cutlass.range_constexpr(self.plan.vectors):
            vector = start + tile * self.tile + index * self.plan.threads
            target = own + (tile * self.plan.vectors + index) * (16 * self.plan.block)
            valid = Int32(limit > 0) if self.whole else Int32(vector < limit)
            copy_words_async(target, row_address(x, row) + Int64(vector) * 16, self.width, valid)

    def _keep_weights(self, weight: Any, own: Any, start: Any, end: Any) -> None:
        """This thread's weights into words of its own, as fp32: once for all rows."""
        loaded = [
            self._load_weights(weight, start + index * self.plan.threads, end) for index in range(self.plan.vectors)
        ]
        for index, words in enumerate(loaded):
            factors = widen_pairs(words)
            for half in range(2):
                store_shared(self._place_of_weights(own, index, half), factors[4 * half : 4 * half + 4], 16)

    def _place_of_weights(self, own: Any, index: int, half: int) -> Any:
        return own + (self.plan.kept_bytes + (2 * index + half) * 16 * self.plan.block)

    def _load_weights(self, weight: Any, vector: Any, end: Any) -> list[Int32]:
        return load_words(weight.iterator.toint() + Int64(vector) * 16, self.width, Int32(vector < end))

    def _weights(self, weight: Any, own: Any, index: int, first: Any, end: Any) -> Callable[[], list[Float32]]:
        """What gives a vector's weights: shared memory when it is called, or memory, from which they come at once."""
        if self.weights_kept:
            return lambda: [
                value
                for half in range(2)
                for value in load_shared(self._place_of_weights(own, index, half), 4, Float32)
            ]
        words = self._load_weights(weight, first + index * self.plan.threads, end)
        return lambda: widen_pairs(words)

    @cute.jit
    def _take(
        self, words: cute.Tensor, x: cute.Tensor, row: Int64, own: Int32, tile: Int32, start: Int32, limit: Int32
    ) -> None:
        """A tile of a row into registers: from this thread's words, or from memory where the row is not kept."""
        if cutlass.const_expr(self.plan.kept):
            for index in cutlass.range_constexpr(self.plan.vectors):
                place = own + (tile * self.plan.vectors + index) * (16 * self.plan.block)
                for part, word in enumerate(load_shared(place, 4)):
                    words[index * 4 + part] = word
        else:
            load_vectors(words, row_address(x, row), start + tile * self.tile, self.plan.threads, limit, self.width)

    @cute.jit
    def _squares(self, words: cute.Tensor) -> Float32:
        total = Float32(0.0)
        for index in cutlass.range_constexpr(self.plan.vectors):
            for value in widen_pairs([words[index * 4 + part] for part in range(4)]):
                total += value * value
        return total
