"""RMS-normalised rows of 16-bit elements on SM90 and up: rows stream through shared memory while others are worked on.

A CTA, or each CTA of a cluster its part, goes from row to row with the weight in registers. The copy engine brings the
rows that follow: a row moves from shared memory to registers at once, so that its place is free for the next while its
sum, its results and their stores are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute import bulk
from cudnn_fe.core.cute.bfloat16_pairs import widen_pairs
from cudnn_fe.core.cute.distributed import remote_address
from cudnn_fe.core.cute.exact import reciprocal_square_root
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.rms_rows import RmsRows
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_vectors, nth_vector, row_address
from cudnn_fe.core.row_plan import RowPlan, StreamPlan

__all__ = ["RmsStream", "rms_rows"]


def rms_rows(columns: int, width: int, plan: RowPlan | StreamPlan) -> RmsRows | RmsStream:
    """The way through rows of a plan; arguments as `RmsRows` has them."""
    return RmsStream(columns, plan) if isinstance(plan, StreamPlan) else RmsRows(columns, width, plan)


_HELD = 4  # vectors of a row that leave registers enough


class RmsStream:
    """How CTAs go through rows; used as `RmsRows` is.

    Args:
        columns: Elements of a row, a multiple of 8; rows and the weight are aligned to 16 bytes.
        plan: Threads, registers and shared memory.
    """

    def __init__(self, columns: int, plan: StreamPlan) -> None:
        self.columns, self.plan = columns, plan
        self.per_row = columns // VECTOR
        self.exact = plan.tile == plan.part and plan.part * plan.ctas == self.per_row
        self.groups = RowGroups(plan.threads, 1)
        self.sums = plan.stages * plan.stage_bytes
        self.boxes = self.sums + 4 * self.groups.shared_words()
        self.barriers = self.boxes + 2 * 4 * max(plan.ctas, 4)
        self.shared_bytes = self.barriers + 8 * (plan.stages + 2)

    def launch(self, kernel: Any, rows: Any, stream: Any) -> None:
        """Launch a bound kernel for so many rows."""
        ctas = self.plan.ctas
        kernel.launch(
            grid=(cutlass.min(Int32(rows), Int32(self.plan.clusters)) * ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            cluster=(ctas, 1, 1) if ctas > 1 else None,
            stream=stream,
            min_blocks_per_mp=self.plan.blocks,
            preferred_smem_carveout=-1,
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
        """Normalise this CTA's rows, or its parts of them; arguments as `RmsRows.each_row` has them."""
        plan, run = self.plan, self.plan.run
        thread, ctas = Int32(cute.arch.thread_idx()[0]), plan.ctas
        cluster, clusters = Int32(cute.arch.block_idx()[0]) // ctas, Int32(cute.arch.grid_dim()[0]) // ctas
        rank = Int32(cute.arch.block_in_cluster_idx()[0]) if cutlass.const_expr(ctas > 1) else Int32(0)
        start = rank * plan.part
        end = cutlass.min(start + plan.part, Int32(self.per_row))
        rows = Int32(x.shape[0])
        self._prepare(shared, thread, end - start)
        for turn in cutlass.range_constexpr(plan.stages):
            self._fetch(x, shared, thread, cluster + turn * clusters, rows, Int32(turn), start, end)
        held = plan.vectors <= _HELD
        weights, words = (cute.make_rmem_tensor(4 * plan.vectors, Int32) for _ in range(2))
        load_vectors(weights, weight.iterator.toint(), start + thread * run, plan.threads, end, 16, run)
        for turn in cutlass.range((rows - cluster + clusters - 1) // clusters, unroll=1):
            row, stage = cluster + turn * clusters, turn % plan.stages
            place = shared + stage * plan.stage_bytes + thread * (16 * run)
            bulk.wait(shared + self.barriers + stage * 8, (turn // plan.stages) & 1)
            total = Float32(0.0)
            for index in cutlass.range_constexpr(plan.vectors):
                loaded = load_shared(place + 16 * nth_vector(index, plan.threads, run), 4)
                if cutlass.const_expr(held):
                    for part in cutlass.range_constexpr(4):
                        words[index * 4 + part] = loaded[part]
                for value in widen_pairs(loaded):
                    total += value * value
            (total,) = self.groups.sum([total], shared + self.sums, turn & 1)
            # Behind the sum's barrier every thread has its words, or is done with the row before: a place is free.
            ahead = turn + plan.stages - (0 if held else 1)
            if cutlass.const_expr(held):
                self._fetch(x, shared, thread, cluster + ahead * clusters, rows, stage, start, end)
            elif turn > 0:
                self._fetch(x, shared, thread, cluster + ahead * clusters, rows, ahead % plan.stages, start, end)
            if cutlass.const_expr(ctas > 1):
                total = self._exchange(shared, thread, total, turn, rank)
            scale = reciprocal_square_root(total * Float32(1.0 / self.columns) + eps)
            for index in cutlass.range_constexpr(0, plan.vectors, run):
                behind = nth_vector(index, plan.threads, run)
                vector = start + thread * run + behind
                valid = Int32(1) if cutlass.const_expr(self.exact) else Int32(vector < end)
                if cutlass.const_expr(held):
                    mine = [words[index * 4 + part] for part in range(4 * run)]
                else:
                    mine = [word for more in range(run) for word in load_shared(place + 16 * (behind + more), 4)]
                factors = widen_pairs([weights[index * 4 + part] for part in range(4 * run)])
                finish(Int64(row), vector, widen_pairs(mine), factors, scale, valid)
            close(Int64(row), rank * (plan.threads // 32) + thread // 32, thread, Int32(1))

    @cute.jit
    def _prepare(self, shared: Int32, thread: Int32, count: Int32) -> None:
        """Set the barriers, and clear what no copy reaches behind a part's end."""
        if thread == 0:
            for index in cutlass.range_constexpr(self.plan.stages + 2):
                bulk.set_barrier(shared + self.barriers + index * 8)
            bulk.barriers_are_set()
        if cutlass.const_expr(not self.exact):
            for slot in cutlass.range_constexpr(self.plan.stages * self.plan.vectors):
                stage, index = divmod(slot, self.plan.vectors)
                vector = thread + index * self.plan.threads
                if vector >= count:
                    store_shared(shared + stage * self.plan.stage_bytes + vector * 16, [Int32(0)] * 4, 16)
        if cutlass.const_expr(self.plan.ctas > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def _fetch(
        self,
        x: cute.Tensor,
        shared: Int32,
        thread: Int32,
        row: Int32,
        rows: Int32,
        stage: Int32,
        start: Int32,
        end: Int32,
    ) -> None:
        """Begin to copy this CTA's part of a row, if there is such a row."""
        if thread == 0 and row < rows:
            barrier, nbytes = shared + self.barriers + stage * 8, (end - start) * 16
            bulk.announce(barrier, nbytes)
            source = row_address(x, row) + Int64(start) * 16
            bulk.bulk_load(shared + stage * self.plan.stage_bytes, source, nbytes, barrier)

    @cute.jit
    def _exchange(self, shared: Int32, thread: Int32, total: Float32, turn: Int32, rank: Int32) -> Float32:
        """The sum over the cluster's CTAs.

        Unlike a barrier of the cluster it waits for no store. Two boxes in turn are enough: a CTA sends its next but
        one value only after it has the next of all others, which they send when they have read this one.
        """
        ctas, boxes = self.plan.ctas, max(self.plan.ctas, 4)
        slot = turn & 1
        box = shared + self.boxes + slot * (4 * boxes)
        barrier = shared + self.barriers + (self.plan.stages + slot) * 8
        if thread == 0:
            bulk.announce(barrier, 4 * ctas)
        if thread < ctas:
            bulk.send(remote_address(box + rank * 4, thread), total, remote_address(barrier, thread))
        bulk.wait(barrier, (turn >> 1) & 1)
        return _sum_of_box(box, ctas)


def _sum_of_box(box: Any, ctas: int) -> Float32:
    parts = [part for first in range(0, ctas, 4) for part in load_shared(box + first * 4, 4, Float32)][:ctas]
    while len(parts) > 1:
        parts = [low + high for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
