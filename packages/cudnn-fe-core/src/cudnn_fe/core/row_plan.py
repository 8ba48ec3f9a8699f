"""How a block shares rows of 16-bit elements among its threads: plain data, chosen from the row's width alone."""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_fe.core.device import Device
from cudnn_fe.core.powers import common_power_of_two, next_power_of_two
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["RowPlan", "StreamPlan", "access_bytes", "row_plan", "stream_plan"]

_VECTOR_BYTES = 16
_BLOCK = 128  # threads that narrow rows share a block up to
_WIDE_BLOCK = 512  # threads of wide rows: two such blocks run beside one another, one's loads under another's sums
_MOST_CTAS = 8  # of a cluster, everywhere
_WIDE_PART = 1024  # vectors of a row that a CTA takes, in 256 threads' registers, as long as there are CTAs enough
_STREAMED_PART = 4096  # vectors of a row that a CTA streams: 64 KB, three times in shared memory
_STREAMED = 208 * 1024  # bytes of shared memory for rows in a multiprocessor
_KEPT_VECTORS = 2  # of a thread at a time, beside as many weights of now and of the next time
_MOST_KEPT = 96 * 1024  # bytes: what a block has on every target


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Threads, registers and shared memory of a row.

    Attributes:
        threads: Neighbouring threads that share a row, or one CTA's part of it; a power of two.
        groups: Rows that a block works on at a time.
        vectors: 16-byte vectors that one thread holds in registers at a time.
        tiles: Times that it takes to go through the part; above 1 it is gone through twice.
        ctas: CTAs of a cluster that share a row; 1 without a cluster.
        part: Vectors of a row in each of them, an even number where there are several.
        kept: Whether registers or shared memory hold the part, so that the second time reads no memory.
        run: Neighbouring vectors among a thread's.
    """

    threads: int
    groups: int
    vectors: int
    tiles: int = 1
    ctas: int = 1
    part: int = 0
    kept: bool = True
    run: int = 1

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.groups

    @property
    def parts(self) -> int:
        """Warps, or where a warp has several rows, groups of threads, that share a row."""
        return self.ctas * max(self.threads // 32, 1)

    @property
    def kept_bytes(self) -> int:
        """Shared memory for the rows that a block works on; none for what its registers hold."""
        return self.block * self.vectors * self.tiles * _VECTOR_BYTES if self.kept and self.tiles > 1 else 0


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Threads, registers and shared memory of rows that follow one another through a CTA.

    Attributes:
        threads: Of a CTA.
        vectors: 16-byte vectors of a row, and as many of the weight, in one thread's registers.
        ctas: CTAs of a cluster that share a row; 1 without a cluster.
        part: Vectors of a row in each of them, an even number where there are several.
        stages: Rows in shared memory.
        blocks: CTAs of a multiprocessor.
        clusters: Clusters, or CTAs without a cluster, that run at once.
        run: Neighbouring vectors among a thread's.
    """

    threads: int
    vectors: int
    ctas: int
    part: int
    stages: int
    blocks: int
    clusters: int
    run: int = 1

    @property
    def tile(self) -> int:
        """Vectors that a CTA has room for."""
        return self.threads * self.vectors

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a row, or a part of one."""
        return self.tile * _VECTOR_BYTES

    @property
    def parts(self) -> int:
        """Warps that share a row."""
        return self.ctas * self.threads // 32


def stream_plan(columns: int, where: Device, *, run: int = 1) -> StreamPlan | None:
    """The plan for rows of ``columns`` 16-bit elements, if they had better stream through shared memory.

    That is for rows too wide for a few blocks of a multiprocessor to hold in their registers. They must be aligned to
    16 bytes. Clusters of four or eight fit only where multiprocessors lie together, on 120 of an H200's 132: no more
    are started, since one that waits for another to end would double the time.

    Args:
        columns: Elements of a row.
        where: The device.
        run: Neighbouring vectors that one thread should hold, 1 or 2.
    """
    per_row = -(-columns * 2 // _VECTOR_BYTES)
    ctas = next_power_of_two(-(-per_row // _STREAMED_PART))
    if not _streams(where) or per_row <= _WIDE_PART or ctas > _MOST_CTAS:
        return None
    part = -(-per_row // ctas)
    part += part % 2 if ctas > 1 else 0
    vectors = -(-part // _WIDE_BLOCK)
    vectors += vectors % run
    blocks = 2 if vectors <= 4 else 1
    stages = _STREAMED // (blocks * _WIDE_BLOCK * vectors * _VECTOR_BYTES)
    usable = where.multiprocessors if ctas <= 2 else where.multiprocessors * 10 // 11
    return StreamPlan(_WIDE_BLOCK, vectors, ctas, part, min(stages, 4), blocks, max(usable * blocks // ctas, 1), run)


def _streams(where: Device) -> bool:
    """Whether a device has bulk copies and more than 200 KB of shared memory for a block."""
    return where.capability[0] in (9, 10, 11)


def row_plan(
    columns: int, *, vectors: int = 4, least_threads: int = 1, clusters: bool = False, run: int = 1
) -> RowPlan:
    """The plan for rows of ``columns`` 16-bit elements.

    Args:
        columns: Elements of a row.
        vectors: Vectors a thread should hold.
        least_threads: A power of two.
        clusters: Whether the device has clusters, for rows too wide for one CTA.
        run: Neighbouring vectors that one thread should hold, 1 or 2.

    Example:
        >>> row_plan(4096)
        RowPlan(threads=128, groups=1, vectors=4, tiles=1, ctas=1, part=512, kept=True, run=1)
    """
    per_row = -(-columns * 2 // _VECTOR_BYTES)
    ctas = min(next_power_of_two(-(-per_row // _WIDE_PART)), _MOST_CTAS) if clusters else 1
    part = -(-per_row // ctas)
    part += part % 2 if ctas > 1 else 0
    threads = max(min(next_power_of_two(-(-part // vectors)), _WIDE_BLOCK), least_threads)
    if part > threads * vectors and part * _VECTOR_BYTES <= _MOST_KEPT:
        vectors = _KEPT_VECTORS
    tiles = -(-part // (threads * vectors))
    held = max(-(-part // (threads * tiles)), 1)
    held += held % run
    groups = max(_BLOCK // threads, 1)
    groups = max(groups, 32 // threads)  # whole warps
    kept = tiles * threads * groups * held * _VECTOR_BYTES <= _MOST_KEPT
    return RowPlan(threads, groups, held, tiles, ctas, part, kept, run)


def access_bytes(*specs: TensorSpec | None) -> int:
    """Bytes, up to 16, that divide the addresses of all rows of all operands: how wide a kernel may access them."""
    found = _VECTOR_BYTES
    for spec in specs:
        if spec is None:
            continue
        steps = [step for step, extent in zip(spec.strides, spec.shape, strict=True) if extent > 1 and step != 1]
        for nbytes in (spec.alignment, *(step * spec.dtype.itemsize for step in steps)):
            found = common_power_of_two(found, nbytes)
    return found
