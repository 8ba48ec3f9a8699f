"""How a block shares rows of 16-bit elements among its threads: plain data, chosen from the row's width alone."""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_fe.core.powers import common_power_of_two, next_power_of_two
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["RowPlan", "access_bytes", "row_plan"]

_VECTOR_BYTES = 16
_BLOCK = 128  # threads that narrow rows share a block up to
_WIDE_BLOCK = 512  # threads of wide rows: two such blocks run beside one another, one's loads under another's sums
_MOST_CTAS = 8  # of a cluster, everywhere
_HELD_PART = 1024  # vectors of a row that the registers of 256 threads hold
_WHOLE_ROW = 4096  # vectors that one CTA keeps in shared memory, faster than a cluster's registers do
_KEPT_PART = 2048  # vectors that each CTA of a cluster keeps there, in 256 threads, as long as there are CTAs enough
_MOST_KEPT = 96 * 1024  # bytes: what a block has on every target
_RESIDENT = 1024  # threads of a multiprocessor


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
        resident: Threads that a multiprocessor should have at once.
        unroll: Turns of the loop over tiles that are made one.
    """

    threads: int
    groups: int
    vectors: int
    tiles: int = 1
    ctas: int = 1
    part: int = 0
    kept: bool = True
    run: int = 1
    resident: int = _RESIDENT
    unroll: int = 1

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


def row_plan(
    columns: int,
    *,
    vectors: int = 4,
    kept_vectors: int = 2,
    least_threads: int = 1,
    clusters: bool = False,
    run: int = 1,
) -> RowPlan:
    """The plan for rows of ``columns`` 16-bit elements.

    Args:
        columns: Elements of a row.
        vectors: Vectors a thread should hold.
        kept_vectors: Of rows in shared memory, beside as many weights of now and of the next time.
        least_threads: A power of two.
        clusters: Whether the device has clusters, for rows too wide for one CTA.
        run: Neighbouring vectors that one thread should hold, 1 or 2.

    Example:
        >>> row_plan(4096).threads, row_plan(32768).tiles, row_plan(65536, clusters=True).ctas
        (128, 4, 4)
    """
    per_row = -(-columns * 2 // _VECTOR_BYTES)
    ctas = _ctas(per_row) if clusters else 1
    part = -(-per_row // ctas)
    part += part % 2 if ctas > 1 else 0
    wide = ctas > 1 and per_row > 2 * _HELD_PART
    widest = wide and part > _KEPT_PART
    most_threads = _WIDE_BLOCK // 2 if wide and not widest else _WIDE_BLOCK
    threads = max(min(next_power_of_two(-(-part // vectors)), most_threads), least_threads)
    if part > threads * vectors and part * _VECTOR_BYTES <= _MOST_KEPT:
        vectors = min(kept_vectors, 2) if widest else kept_vectors
    tiles = -(-part // (threads * vectors))
    held = max(-(-part // (threads * tiles)), 1)
    held += held % run
    groups = max(_BLOCK // threads, 1)
    groups = max(groups, 32 // threads)  # whole warps
    kept = tiles * threads * groups * held * _VECTOR_BYTES <= _MOST_KEPT
    # A third block of so many threads leaves few registers, and is worth more, but only without the loop's turns.
    resident, unroll = (3 * _WIDE_BLOCK, tiles) if widest and kept else (_RESIDENT, 1)
    return RowPlan(threads, groups, held, tiles, ctas, part, kept, run, resident, unroll)


def _ctas(per_row: int) -> int:
    """How many CTAs share a row of so many vectors."""
    if per_row <= 2 * _HELD_PART:
        return next_power_of_two(-(-per_row // _HELD_PART))
    if per_row <= _WHOLE_ROW:
        return 1
    return min(next_power_of_two(-(-per_row // _KEPT_PART)), _MOST_CTAS)


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
