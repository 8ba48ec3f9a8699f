"""A cluster's partial accumulators summed through distributed shared memory, in rank order: no workspace or atomics."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.distributed import remote_address, store_remote

__all__ = ["exchange", "mailbox_bytes", "turns"]

WARPGROUP = 128
VECTOR = 4


def turns(blocks: int, ranks: int) -> int:
    """How many blocks of its warpgroup's columns one CTA finishes, at most."""
    return -(-blocks // ranks)


def mailbox_bytes(blocks: int, values: int, ranks: int) -> int:
    """Shared memory that one warpgroup's incoming partial sums take."""
    return 4 * values * WARPGROUP * ranks * turns(blocks, ranks)


@cute.jit
def exchange(
    acc: cute.Tensor,
    stages: cute.Pointer,
    consumer: Int32,
    rank: Int32,
    blocks: cutlass.Constexpr[int],
    peers: list[Int32],
) -> list[cute.Tensor]:
    """The complete sums of the blocks that this CTA owns: block ``rank``, ``rank + ranks`` and so on.

    Every CTA sends each block of its accumulator to the block's owner, who adds them in rank order, so that results
    do not depend on timing. The stages' memory serves as mailbox once all CTAs have summed their part of K; two
    cluster barriers bracket the exchange. All consumer warpgroups must call it; warps that have exited do not count.

    Args:
        acc: One thread's accumulator.
        stages: Start of the operand stages, which have room for every warpgroup's `mailbox_bytes`.
        consumer: Index of the consumer warpgroup.
        rank: This CTA's part of K.
        blocks: Blocks of the warpgroup's columns.
        peers: Cluster ranks of the CTAs that sum the parts of K of this tile, in the order of the parts.
    """
    ranks = len(peers)
    thread = cute.arch.thread_idx()[0] % WARPGROUP
    values = cute.size(acc) // blocks
    rounds = turns(blocks, ranks)
    # (value of 4, thread, vector, sender, turn, consumer)
    layout = cute.make_layout(
        (VECTOR, WARPGROUP, values // VECTOR, ranks, rounds),
        stride=(1, VECTOR, VECTOR * WARPGROUP, values * WARPGROUP, values * WARPGROUP * ranks),
    )
    floats = cute.recast_ptr(stages, dtype=Float32) + consumer * cute.cosize(layout)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    for block in cutlass.range_constexpr(blocks):
        place = floats + layout((0, thread, 0, rank, block // ranks))
        mailbox = remote_address(place.toint(), peers[block % ranks])
        for vector in cutlass.range_constexpr(values // VECTOR):
            first = block * values + vector * VECTOR
            store_remote(mailbox + vector * (4 * VECTOR * WARPGROUP), [acc[first + i] for i in range(VECTOR)])
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    mine = cute.make_tensor(floats, layout)
    sums: list[Any] = []
    for turn in cutlass.range_constexpr(rounds):
        total = cute.make_rmem_tensor((VECTOR, values // VECTOR), Float32)
        part = cute.make_rmem_tensor((VECTOR, values // VECTOR), Float32)
        cute.autovec_copy(mine[None, thread, None, 0, turn], total)
        for sender in cutlass.range_constexpr(1, ranks):
            cute.autovec_copy(mine[None, thread, None, sender, turn], part)
            total.store(total.load() + part.load())
        sums.append(cute.make_tensor(total.iterator, cute.make_layout(values)))
    return sums
