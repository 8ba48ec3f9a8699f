"""The persistent, warp-specialised GEMM kernel for Hopper: one warpgroup loads, the others multiply and store."""

from __future__ import annotations

from typing import Any, Literal

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync

from cudnn_fe.core.cute import epilogue_sm90, mainloop_sm90, split_k
from cudnn_fe.core.cute.epilogue_sm90 import BlockPlace, Epilogue, Output, ReadingEpilogue
from cudnn_fe.core.cute.epilogue_source import EpilogueSource
from cudnn_fe.core.cute.gemm_layout import DenseGemm, Extents, GemmLayout, Rank, TilePlace
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.cute.tma import TmaTile, k_tiles, load_tile, store_tile, tile_at
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile

__all__ = ["GemmSm90"]

SMEM_BYTES = 227 * 1024
BARRIER_BYTES = 1024
WARPGROUP = 128
PRODUCER_REGISTERS = 40
CONSUMER_REGISTERS = 232
STORE_BARRIER = 1
TURN_BARRIER = 3


class GemmSm90:
    """A GEMM for one `GemmSpec`, its outputs and its epilogue.

    Args:
        spec: Operand types and majors, and the tile.
        outputs: What is stored, in the epilogue's order.
        epilogue: The function from a block of accumulators to the outputs' fragments.
        block_columns: Accumulator columns that one call of the epilogue sees.
        layout: How the tensors lie, and which tiles there are.
        part: ``"first"`` and ``"rest"`` for two launches that share the work: see `gemm_in_waves`.

    With K split, a cluster works on one output tile and then exits: its partial sums travel through the stages' memory.
    """

    def __init__(
        self,
        spec: GemmSpec,
        outputs: tuple[Output, ...],
        epilogue: Epilogue,
        block_columns: int,
        layout: GemmLayout = DenseGemm(),  # noqa: B008
        part: Literal["whole", "first", "rest"] = "whole",
    ) -> None:
        tile = spec.tile or GemmTile()
        self.part = part
        self.spec, self.tile, self.outputs, self.epilogue = spec, tile, outputs, epilogue
        self.block_columns = block_columns
        self.layout = layout
        self.a_type, self.b_type = element_type(spec.a_dtype), element_type(spec.b_dtype)
        self.k = mainloop_sm90.STAGE_BYTES_K * 8 // self.a_type.width
        self.cta_tile = (tile.m, tile.n, self.k)
        self.sharing = tile.warpgroups_m * tile.warpgroups_n
        self.consumers = 2 if tile.ping_pong else self.sharing
        self.threads = WARPGROUP * (self.consumers + 1)
        self.warpgroup_columns = tile.n // tile.warpgroups_n
        self.row_blocks = tile.m // (64 * tile.warpgroups_m)
        self.blocks = self.warpgroup_columns // block_columns
        self.sources = (epilogue.source,) if isinstance(epilogue, ReadingEpilogue) else ()
        self.source_slots = self._source_slots()
        self.values = block_columns // 2
        self.cluster = (tile.cluster_m, tile.cluster_n, tile.split_k)
        self.a_rows = tile.fetched_m or tile.m
        if self.a_rows != tile.m and (spec.a_major != "k" or tile.cluster_n > 1):
            raise ValueError(f"{tile} fetches part of A's rows, which needs A contiguous along K and not multicast")
        self.stage_bytes = (tile.m + tile.n) * mainloop_sm90.STAGE_BYTES_K
        slot_bytes = self.consumers * sum(output.bytes for output in outputs)
        free = SMEM_BYTES - BARRIER_BYTES
        free -= self.consumers * self.source_slots * sum(source.bytes for source in self.sources)
        self.slots, self.stages = self._share(free, slot_bytes, self.row_blocks * self.blocks)
        mailbox_bytes = split_k.mailbox_bytes(self.blocks, self.values, tile.split_k) * self.consumers
        if tile.split_k > 1 and (mailbox_bytes > self.stages * self.stage_bytes or self.row_blocks > 1):
            raise ValueError(f"K split in {tile.split_k} needs more shared memory than the stages of {tile} have")

    def _source_slots(self) -> int:
        """Buffers of each warpgroup for the blocks that the epilogue reads.

        Each is filled an even number of times a tile, so that its barrier's phase follows from the block alone.
        """
        if not self.sources:
            return 0
        blocks = self.row_blocks * self.blocks
        if self.tile.split_k > 1 or blocks % 2:
            raise ValueError(f"{self.tile}: an epilogue that reads wants an even number of blocks, and all of K")
        return 2 if blocks % 4 == 0 else 1

    def _share(self, free: int, slot_bytes: int, blocks: int) -> tuple[int, int]:
        """Slots for stored blocks and stages for operands in the shared memory there is.

        A tile's blocks must fill the slots evenly: else its last block and the next one's first would share one.
        """
        two = (free - 2 * slot_bytes) // self.stage_bytes
        one = (free - slot_bytes) // self.stage_bytes
        return (2, two) if one == two and blocks % 2 == 0 else (1, one)

    def tiled_mma(self) -> Any:
        """The products of one CTA."""
        majors = (self.spec.a_major, self.spec.b_major)
        warpgroups = (self.tile.warpgroups_m, self.tile.warpgroups_n)
        return mainloop_sm90.make_tiled_mma(self.a_type, self.b_type, majors, self.warpgroup_columns, warpgroups)

    def a_layout(self, rows: int, stages: int) -> Any:
        """A's stages."""
        return mainloop_sm90.operand_smem_layout(self.a_type, self.spec.a_major, rows, self.k, stages)

    def b_layout(self, stages: int) -> Any:
        """B's stages."""
        return mainloop_sm90.operand_smem_layout(self.b_type, self.spec.b_major, self.tile.n, self.k, stages)

    @cute.jit
    def __call__(
        self,
        stream: CUstream,
        a: cute.Tensor,
        b: cute.Tensor,
        outs: tuple[cute.Tensor, ...],
        arguments: Any,
        tables: tuple[cute.Tensor, ...] = (),
        sources: tuple[cute.Tensor, ...] = (),
    ) -> None:
        """Launches on `stream`. No extent may be 0.

        Args:
            stream: Launch stream.
            a: A, as the layout says.
            b: B, likewise.
            outs: In the order of `outputs`.
            arguments: What the epilogue gets.
            tables: What the layout's schedule reads.
            sources: What the epilogue reads besides, if it does.
        """
        tile = self.tile
        extents = self.layout.extents(a, b, tables)
        a, b = self.layout.views(a, b, (self.spec.a_major, self.spec.b_major))
        internal = cutlass.TFloat32 if self.a_type.width == 32 else None
        load_a = load_tile(a, self.a_layout(self.a_rows, 1), (self.a_rows, self.k), tile.cluster_n, internal)
        load_b = load_tile(b, self.b_layout(1), (tile.n, self.k), tile.cluster_m, internal)
        stores = []
        for output, out in zip(self.outputs, outs, strict=True):
            view = self.layout.store_view(out, output.major)
            stores.append(store_tile(view, cute.slice_(output.smem_layout(1), (None, None, 0)), (64, output.columns)))
        reads = []
        for described, source in zip(self.sources, sources, strict=True):
            view, block = self.layout.store_view(source, described.major), (64, described.columns)
            reads.append(load_tile(view, described.smem_layout(1), block, 1))
        clusters = self.layout.most_tiles(extents, self.cta_tile, self.cluster)
        if cutlass.const_expr(tile.split_k == 1):
            clusters = cutlass.min(clusters, tile.persistent_ctas // cute.size(self.cluster))
        self.kernel(load_a, load_b, tuple(stores), tuple(reads), self.tiled_mma(), extents, arguments, tables).launch(
            grid=(tile.cluster_m, tile.cluster_n, tile.split_k * clusters),
            block=(self.threads, 1, 1),
            cluster=self.cluster,
            min_blocks_per_mp=1,
            use_pdl=tile.early_launch,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        load_a: TmaTile,
        load_b: TmaTile,
        stores: tuple[TmaTile, ...],
        reads: tuple[TmaTile, ...],
        tiled_mma: cute.TiledMma,
        extents: Extents,
        arguments: Any,
        tables: tuple[cute.Tensor, ...],
    ) -> None:
        """The device code: descriptors, shared memory, then one branch per warpgroup role."""
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        warpgroup_index = cute.arch.make_warp_uniform(thread // WARPGROUP)
        if warp == 0:
            cpasync.prefetch_descriptor(load_a.atom)
            cpasync.prefetch_descriptor(load_b.atom)
            for other in stores + reads:
                cpasync.prefetch_descriptor(other.atom)

        smem = cutlass.memory.SmemAllocator()
        barriers = smem.allocate_array(cutlass.Int64, 2 * self.stages, byte_alignment=16)
        a_layout, b_layout = self.a_layout(self.tile.m, self.stages), self.b_layout(self.stages)
        sA = smem.allocate_tensor(self.a_type, a_layout.outer, 1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(self.b_type, b_layout.outer, 1024, swizzle=b_layout.inner)
        sOuts = []
        for output in self.outputs:
            layout = output.smem_layout(self.slots * self.consumers)
            sOuts.append(smem.allocate_tensor(output.element, layout.outer, 1024, swizzle=layout.inner))
        count = self.source_slots * self.consumers
        sources = tuple([EpilogueSource.of(*pair, smem, count) for pair in zip(self.sources, reads, strict=True)])
        if thread == 0:
            for source in sources:
                source.prepare()

        cluster_layout = cute.make_layout((1, *self.cluster))
        rank = tuple(cute.arch.block_in_cluster_idx())
        sharers = self.tile.cluster_m + self.tile.cluster_n - 1
        ring = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, sharers * self.sharing * 4),
            tx_count=(self.a_rows + self.tile.n) * mainloop_sm90.STAGE_BYTES_K,
            cta_layout_vmnk=cluster_layout,
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=self.cluster, is_relaxed=True)

        if cutlass.const_expr(self.tile.early_launch and len(tables) + len(reads) > 0):
            cute.arch.griddepcontrol_wait()  # the previous kernel may write what the schedule and the epilogue read
        tiles = self.layout.schedule(extents, tables, self.cta_tile, self.cluster, self.tile.group_m)
        first = cute.arch.block_idx()[2] // self.tile.split_k
        step = cute.arch.grid_dim()[2] // self.tile.split_k
        pipeline.pipeline_init_wait(cluster_shape_mn=self.cluster)

        if warpgroup_index == 0:
            if cutlass.const_expr(self.consumers == 2):
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                self.load_tiles(ring, tiles, first, step, rank, load_a, load_b, sA, sB)
            elif cutlass.const_expr(self.layout.fills):
                across, up, deep = cute.arch.grid_dim()
                x, y, z = cute.arch.block_idx()
                self.layout.fill(extents, tables, x + across * (y + up * z), across * up * deep, WARPGROUP - 32)
        else:
            if cutlass.const_expr(self.consumers == 2):
                cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            consumer = warpgroup_index - 1
            self.multiply_tiles(
                ring, tiles, first, step, rank, tiled_mma, sA, sB, stores, sOuts, sources, consumer, arguments
            )

    @cute.jit
    def load_tiles(
        self,
        ring: Any,
        tiles: Any,
        first: Int32,
        step: Int32,
        rank: Rank,
        load_a: TmaTile,
        load_b: TmaTile,
        sA: cute.Tensor,
        sB: cute.Tensor,
    ) -> None:
        """The producer warp: every K tile of every output tile of this CTA."""
        sA = cute.local_tile(sA, (self.a_rows, self.k, self.stages), (0, 0, 0))
        cluster_layout = cute.make_layout((1, *self.cluster))
        coordinates = (0, *rank)
        a_mask = cpasync.create_tma_multicast_mask(cluster_layout, coordinates, 2)
        b_mask = cpasync.create_tma_multicast_mask(cluster_layout, coordinates, 1)
        a_mask = a_mask if self.tile.cluster_n > 1 else None
        b_mask = b_mask if self.tile.cluster_m > 1 else None
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        if cutlass.const_expr(self.tile.early_launch and self.part != "rest"):
            cute.arch.griddepcontrol_wait()  # the consumers store only what depends on these loads
        if cutlass.const_expr(self.tile.early_launch and self.part == "first"):
            cute.arch.griddepcontrol_launch_dependents()  # the rest's CTAs take the place of those that end
        for linear in cutlass.range(first, tiles.total(), step, unroll=1):
            at = self.layout.place(tiles, linear, rank, self.cta_tile)
            from_a = k_tiles(load_a, at.a, (self.a_rows, self.k), sA, rank[1], self.tile.cluster_n)
            from_b = k_tiles(load_b, at.b, (self.tile.n, self.k), sB, rank[0], self.tile.cluster_m)
            state = mainloop_sm90.produce(ring, state, load_a, load_b, from_a, from_b, at.k_tiles, a_mask, b_mask)
        if cutlass.const_expr(self.tile.early_launch and self.part != "first"):
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.tile.early_launch and self.part == "rest"):
            # Every CTA of the first part has waited for the stream before this part began. What follows in the stream
            # waits for this part alone, so this one ends after the first.
            cute.arch.griddepcontrol_wait()
        ring.producer_tail(state)

    @cute.jit
    def multiply_tiles(
        self,
        ring: Any,
        tiles: Any,
        first: Int32,
        step: Int32,
        rank: Rank,
        tiled_mma: cute.TiledMma,
        sA: cute.Tensor,
        sB: cute.Tensor,
        stores: tuple[TmaTile, ...],
        sOuts: list[cute.Tensor],
        sources: tuple[EpilogueSource, ...],
        consumer: Int32,
        arguments: Any,
    ) -> None:
        """A consumer warpgroup: its products of every output tile of this CTA, then the epilogue of each."""
        turn = consumer if self.tile.ping_pong else Int32(0)
        turns = self.consumers if self.tile.ping_pong else 1
        thread_mma = tiled_mma.get_slice((consumer - turn) * WARPGROUP)
        tCrA = tiled_mma.make_fragment_A(thread_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thread_mma.partition_B(sB))
        acc = cute.make_rmem_tensor(tiled_mma.partition_shape_C((self.tile.m, self.tile.n)), Float32)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        if cutlass.const_expr(self.tile.ping_pong):
            state = mainloop_sm90.skip(state, turn * self.layout.k_tiles(tiles, first))
            if consumer == 1:
                pipeline.NamedBarrier(TURN_BARRIER, 2 * WARPGROUP).arrive()
        for linear in cutlass.range(first + turn * step, tiles.total(), step * turns, unroll=1):
            at = self.layout.place(tiles, linear, rank, self.cta_tile)
            row = (consumer - turn) % self.tile.warpgroups_m
            column = at.n * self.tile.warpgroups_n + (consumer - turn) // self.tile.warpgroups_m
            places = [divmod(index, self.blocks) for index in range(self.row_blocks * self.blocks)]
            blocks = [(row + down, column * self.blocks + right) for down, right in places]
            if cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4 == 0:
                # What the last tile left here has been read: its results were stored behind a barrier.
                for source in sources:
                    for index in cutlass.range_constexpr(self.source_slots):
                        source.start(at, blocks[index], consumer * self.source_slots + index)
            next_turn = None
            if cutlass.const_expr(self.tile.ping_pong):
                # An mbarrier tells apart neighbouring laps only: waiting for a stage several laps ahead of the
                # ring would succeed at once. So nobody waits before the other has seen all stages of its tile.
                pipeline.NamedBarrier(TURN_BARRIER + consumer, 2 * WARPGROUP).arrive_and_wait()
                next_turn = pipeline.NamedBarrier(TURN_BARRIER + 1 - consumer, 2 * WARPGROUP)
            multiply = mainloop_sm90.consume_promoted if self.spec.is_fp8 else mainloop_sm90.consume
            state = multiply(ring, state, tiled_mma, acc, tCrA, tCrB, at.k_tiles, next_turn)
            if cutlass.const_expr(self.tile.ping_pong):
                state = mainloop_sm90.skip(state, self.layout.k_tiles(tiles, linear + step))
            if cutlass.const_expr(self.tile.split_k == 1):
                for index in cutlass.range_constexpr(len(blocks)):
                    fragment = cute.make_tensor(acc.iterator + index * self.values, cute.make_layout(self.values))
                    later = blocks[index + self.source_slots :][:1]
                    self.store(fragment, stores, sOuts, sources, at, blocks[index], later, consumer, index, arguments)
            else:
                neighbours = self.tile.cluster_m * self.tile.cluster_n
                first_peer = rank[0] + rank[1] * self.tile.cluster_m
                peers = [first_peer + part * neighbours for part in range(self.tile.split_k)]
                sums = split_k.exchange(acc, sA.iterator, consumer, rank[2], self.blocks, peers)
                for index in cutlass.range_constexpr(split_k.turns(self.blocks, self.tile.split_k)):
                    block = rank[2] + index * self.tile.split_k
                    if block < self.blocks:
                        place = (row, column * self.blocks + block)
                        self.store(sums[index], stores, sOuts, (), at, place, [], consumer, index, arguments)
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def where(self, at: TilePlace, block: tuple[Int32, Int32]) -> BlockPlace:
        """The place of a block of the tile, for this thread."""
        thread = cute.arch.thread_idx()[0] % WARPGROUP
        row, column = at.row + 64 * block[0], block[1] * self.block_columns
        return BlockPlace(row, column, at.begin, at.end, at.batch, thread)

    @cute.jit
    def store(
        self,
        fragment: cute.Tensor,
        stores: tuple[TmaTile, ...],
        sOuts: list[cute.Tensor],
        sources: tuple[EpilogueSource, ...],
        at: TilePlace,
        block: tuple[Int32, Int32],
        later: list[tuple[Int32, Int32]],
        consumer: Int32,
        index: cutlass.Constexpr[int],
        arguments: Any,
    ) -> None:
        """Runs the epilogue on the `index`th block of the tile.

        A block's row counts from the tile's, in 64s, its column from N's first. Each warpgroup has its own buffers and
        barrier, so that they may drift. A block's source then makes room for that of `later`, at most one block.
        """
        thread = cute.arch.thread_idx()[0] % WARPGROUP
        storing_warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4 == 0
        barrier = pipeline.NamedBarrier(STORE_BARRIER + consumer, WARPGROUP)
        held = consumer * self.source_slots + index % max(self.source_slots, 1)
        read = [source.fragment(held, index // self.source_slots % 2, thread) for source in sources]
        results = self.epilogue(fragment, self.where(at, block), arguments, *read)
        place = consumer * self.slots + index % self.slots
        if storing_warp:
            cute.arch.cp_async_bulk_wait_group(self.slots - 1, read=True)
        barrier.arrive_and_wait()
        if storing_warp:
            for source in sources:
                for next_block in later:
                    source.start(at, next_block, held)
        for output, result, sOut in zip(self.outputs, results, sOuts, strict=True):
            epilogue_sm90.store_fragment(output, result, sOut[None, None, place], thread)
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()
        if storing_warp:
            for output, store, sOut in zip(self.outputs, stores, sOuts, strict=True):
                corner = (at.out_row + 64 * block[0], block[1] * output.columns, *at.out)
                gOut = tile_at(store.tensor, corner, (64, output.columns))
                tSsOut, tSgOut = cpasync.tma_partition(
                    store.atom, 0, cute.make_layout(1), cute.group_modes(sOut, 0, 2), cute.group_modes(gOut, 0, 2)
                )
                cute.copy(store.atom, tSsOut[None, place], tSgOut)
            cute.arch.cp_async_bulk_commit_group()
