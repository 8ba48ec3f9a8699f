"""dX and dW of the projection and the root mean square in one pass over x, on any GPU from SM80 up.

A warp walks down 64 columns of x in tiles of 32 rows. Each tile is copied to shared memory once, ahead of its use, and
read there twice: as the initial accumulators of dX, and transposed as an operand of dW. TF32 products of both are
mma.sync's; bfloat16 is exact in TF32. dW's sums stay in registers, one part of the rows a CTA; a second launch adds the
parts in their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.block_tiles import load_vector, store_vector_bytes
from cudnn_fe.core.cute.exact import add, divide, multiply
from cudnn_fe.core.cute.ptx_base import (
    copy_async,
    load_global,
    load_matrix,
    load_shared,
    mma,
    round_to_tf32,
    store_shared,
)
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import as_bits, as_float
from cudnn_fe.gemm.mhc_projection.kernel_spec import MhcSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128
_ROWS = 32  # of a tile
_COLUMNS = 64  # of a warp
_STRIP = _THREADS // 32 * _COLUMNS
_CHUNK = 32  # projections of a CTA
_ROW_BYTES = _COLUMNS * 2
_TILE_BYTES = _ROWS * _ROW_BYTES
_STAGES = 4
_PITCH = 36  # words of a row of P: fragments along rows and along columns fall on all banks; the last four hold factors
_P_BYTES = _ROWS * _PITCH * 4
_SHARED = 2 * _P_BYTES + _THREADS // 32 * _STAGES * _TILE_BYTES
_UPPER = -0x10000
_ADDING = 256  # threads of a block of the second launch


class _Given(NamedTuple):
    """Operands by address, and extents.

    Attributes:
        x: (M, K).
        x_row: Bytes from row to row.
        p: grad_proj from the CTA's first projection on.
        p_row: Bytes from row to row.
        r: (M,).
        r_step: Bytes from element to element.
        grad_r: (M,).
        grad_r_step: Bytes from element to element.
        dx: (M, K), compact.
        m: Rows.
        n: Projections from the CTA's first one on.
        k: Columns.
    """

    x: Int64
    x_row: Int64
    p: Int64
    p_row: Int64
    r: Int64
    r_step: Int64
    grad_r: Int64
    grad_r_step: Int64
    dx: Int64
    m: Int32
    n: Int32
    k: Int32


class _Lane(NamedTuple):
    """A thread: its lane, the lane's group of four, its place in it, and its warp's first column."""

    lane: Int32
    group: Int32
    pair: Int32
    column: Int32


class _Backward:
    def __init__(self, spec: MhcSpec) -> None:
        self.blocks, self.chunked = spec.blocks, spec.chunked
        self.access, self.projection_access = spec.access, spec.projection_access

    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        x: cute.Tensor,
        weight: cute.Tensor,
        grad_proj: cute.Tensor,
        grad_r: cute.Tensor,
        r: cute.Tensor,
        dx: cute.Tensor,
        dweight: cute.Tensor,
        partials: cute.Tensor,
    ) -> None:
        m, n, k, splits = x.shape[0], weight.shape[0], x.shape[1], partials.shape[0]
        per_split = ((m + (splits - 1)) // splits + (_ROWS - 1)) // _ROWS * _ROWS
        grid = ((k + (_STRIP - 1)) // _STRIP, splits, (n + (_CHUNK - 1)) // _CHUNK)
        self.kernel(x, weight, grad_proj, grad_r, r, dx, partials, per_split).launch(
            grid=grid, block=(_THREADS, 1, 1), stream=stream
        )
        count = Int64(n) * Int64(k)
        width = min(self.access, 4)
        blocks = Int32((count - 1) // (_ADDING * width)) + 1
        self.add_parts(partials, dweight, count).launch(grid=(blocks, 1, 1), block=(_ADDING, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        grad_proj: cute.Tensor,
        grad_r: cute.Tensor,
        r: cute.Tensor,
        dx: cute.Tensor,
        partials: cute.Tensor,
        per_split: Int32,
    ) -> None:
        strip, split, chunk = cute.arch.block_idx()
        thread = Int32(cute.arch.thread_idx()[0])
        lane = thread % 32
        at = _Lane(lane, lane // 4, lane % 4, strip * _STRIP + thread // 32 * _COLUMNS)
        given = _Given(
            x.iterator.toint(), Int64(x.stride[0]) * 2,
            grad_proj.iterator.toint() + Int64(chunk) * (_CHUNK * 4), Int64(grad_proj.stride[0]) * 4,
            r.iterator.toint(), Int64(r.stride[0]) * 4,
            grad_r.iterator.toint(), Int64(grad_r.stride[0]) * 4,
            dx.iterator.toint(),
            Int32(x.shape[0]), Int32(weight.shape[0]) - chunk * _CHUNK, Int32(x.shape[1]),
        )  # fmt: skip
        shared = SmemAllocator().allocate(_SHARED, 128).toint()
        tiles_at = shared + 2 * _P_BYTES + thread // 32 * (_STAGES * _TILE_BYTES)
        begin = split * per_split
        tiles = (cutlass.min(per_split, given.m - begin) + (_ROWS - 1)) // _ROWS
        for early in cutlass.range_constexpr(_STAGES - 1):
            self.copy_tile(given, at, begin + early * _ROWS, tiles_at + early * _TILE_BYTES)
            cute.arch.cp_async_commit_group()
        self.stage(self.fetch(given, thread, begin), given, thread, shared)
        weights = self.weights(weight, at, chunk * _CHUNK)
        sums = cute.make_rmem_tensor(_COLUMNS // 16 * self.blocks * 4, Float32)
        sums.fill(0.0)
        for tile in cutlass.range(tiles, unroll=1):
            cute.arch.cp_async_wait_group(_STAGES - 2)
            # Everyone's part of P has arrived, and everyone has left the tile before, whose stage is filled next.
            cute.arch.sync_threads()
            row = begin + tile * _ROWS
            words = self.fetch(given, thread, row + _ROWS)
            ahead = tile + (_STAGES - 1)
            self.copy_tile(given, at, begin + ahead * _ROWS, tiles_at + (ahead & (_STAGES - 1)) * _TILE_BYTES)
            cute.arch.cp_async_commit_group()
            tile_at, p_at = tiles_at + (tile & (_STAGES - 1)) * _TILE_BYTES, shared + (tile & 1) * _P_BYTES
            for half in cutlass.range_constexpr(_ROWS // 16):
                self.input_gradient(given, at, weight, weights, row, half * 16, tile_at, p_at, chunk)
                self.add_weight_gradient(at, half * 16, tile_at, p_at, sums)
            self.stage(words, given, thread, shared + ((tile + 1) & 1) * _P_BYTES)
        cute.arch.cp_async_wait_group(0)
        self.store_part(given, at, sums, partials, split, chunk)

    def copy_tile(self, given: _Given, at: _Lane, row: Any, tile_at: Any) -> None:
        """Begin to copy a warp's tile, 16 bytes a lane and turn; zeros outside of x."""
        line, part = at.lane // 8, at.lane % 8
        column = at.column + part * 8
        address = given.x + Int64(row + line) * given.x_row + Int64(column) * 2
        for turn in range(_ROWS // 4):
            own = line + turn * 4
            target = tile_at + own * _ROW_BYTES + _chunk(part, own)
            source, inside = address + given.x_row * (turn * 4), Int32(row + own < given.m)
            if self.access == 1:  # cp.async moves four bytes at least
                store_shared(target, load_vector(source, 16, 1, given.k - column, inside), 16)
                continue
            for start in range(0, 8, self.access):
                valid = inside & Int32(column + start < given.k)
                copy_async(target + start * 2, source + start * 2, self.access * 2, valid)

    def fetch(self, given: _Given, thread: Any, row: Any) -> list[Int32]:
        """A thread's share of a tile of P: eight of a row's words, then the row's r and its gradient."""
        own, first = row + thread // 4, thread % 4 * 8
        inside = Int32(own < given.m)
        address = given.p + Int64(own) * given.p_row + Int64(first) * 4
        words = []
        for start in range(0, 8, self.projection_access):
            valid = inside & Int32(first + start < given.n)
            words += load_global(address + start * 4, self.projection_access * 4, valid)
        words += load_global(given.r + Int64(own) * given.r_step, 4, inside)
        return words + load_global(given.grad_r + Int64(own) * given.grad_r_step, 4, inside)

    def stage(self, words: list[Int32], given: _Given, thread: Any, p_at: Any) -> None:
        """Write what `fetch` read to shared memory: P as TF32, and the factor of x."""
        row_at = p_at + thread // 4 * (_PITCH * 4)
        for start in (0, 4):
            rounded = [round_to_tf32(word) for word in words[start : start + 4]]
            store_shared(row_at + thread % 4 * 32 + start * 4, rounded, 16)
        inverse = divide(1.0, multiply(as_float(words[8]), Float32(given.k)))
        store_shared(row_at + (_CHUNK + thread % 4) * 4, [multiply(as_float(words[9]), inverse)], 4)

    def weights(self, weight: Any, at: _Lane, first: Any) -> list[list[Int32]]:
        """W as the second operand of dX: of each 8 columns, of each block of projections, a lane's two words.

        Column c of the product's j-th block is the matrix's ``8 (c // 2) + 2 j + c % 2``, so that a lane's results of
        four blocks are eight neighbours.
        """
        rows, columns = Int32(weight.shape[0]), Int32(weight.shape[1])
        base, step = weight.iterator.toint(), Int64(weight.stride[0]) * 4
        found = []
        for block in range(_COLUMNS // 8):
            column = at.column + block // 4 * 32 + at.group // 2 * 8 + block % 4 * 2 + at.group % 2
            for projections in range(self.blocks):
                pair = []
                for half in range(2):
                    row = first + projections * 8 + half * 4 + at.pair
                    inside = Int32(row < rows) & Int32(column < columns)
                    word = load_global(base + Int64(row) * step + Int64(column) * 4, 4, inside)[0]
                    pair.append(round_to_tf32(word))
                found.append(pair)
        return found

    def input_gradient(
        self, given: _Given, at: _Lane, weight: Any, weights: Any, row: Any, first: int, tile_at: Any, p_at: Any,
        chunk: Any,
    ) -> None:  # fmt: skip
        """dX of 16 rows: P W added to the rows' factors times x."""
        own = [first + at.group, first + at.group + 8]
        row_at = [p_at + line * (_PITCH * 4) for line in own]
        p = [
            [
                load_shared(row_at[i] + (projections * 8 + half * 4 + at.pair) * 4, 1)[0]
                for half in (0, 1)
                for i in (0, 1)
            ]
            for projections in range(self.blocks)
        ]
        factors = [load_shared(address + (_CHUNK + at.pair) * 4, 1, Float32)[0] for address in row_at]
        for quarter in range(_COLUMNS // 32):
            part = quarter * 4 + at.pair
            values = [widen_pairs(load_shared(tile_at + line * _ROW_BYTES + _chunk(part, line), 4)) for line in own]
            scaled = [[multiply(v, factor) for v in row] for row, factor in zip(values, factors, strict=True)]
            results: list[list[Any]] = []
            for block in range(4):
                added = [scaled[i][2 * block + j] for i in (0, 1) for j in (0, 1)]
                for projections in range(self.blocks):
                    words = weights[(quarter * 4 + block) * self.blocks + projections]
                    added = mma("tf32", p[projections], words, added)
                results.append(added)
            if self.chunked:
                results = self.beyond(given, at, weight, row + first, quarter, results, chunk)
            column = at.column + part * 8
            for i in range(2):
                line = row + own[i]
                inside = Int32(line < given.m) & Int32(chunk == 0)
                target = given.dx + (Int64(line) * given.k + column) * 2
                words = narrow_pairs([block[2 * i + j] for block in results for j in (0, 1)])
                store_vector_bytes(target, words, 16, self.access, given.k - column, inside)

    def beyond(
        self, given: _Given, at: _Lane, weight: Any, row: Any, quarter: int, results: Any, chunk: Any
    ) -> list[list[Any]]:
        """The products with the projections past the first chunk, from global memory: right, not fast."""
        sums = cute.make_rmem_tensor(16, Float32)
        for index in range(16):
            sums[index] = results[index // 4][index % 4]
        _add_beyond(given, at, weight, row, quarter, sums, cutlass.select_(chunk == 0, given.n, Int32(0)))
        return [[sums[4 * block + index] for index in range(4)] for block in range(4)]

    def add_weight_gradient(self, at: _Lane, first: int, tile_at: Any, p_at: Any, sums: Any) -> None:
        """Add 16 rows' part of dW's transpose, 16 columns of x a product; rows 2t and 2t + 1 are its t and t + 4."""
        p = [
            [
                [
                    load_shared(
                        p_at + ((first + eight * 8 + at.pair * 2 + i) * _PITCH + projections * 8 + at.group) * 4, 1
                    )[0]
                    for i in (0, 1)
                ]
                for projections in range(self.blocks)
            ]
            for eight in (0, 1)
        ]
        matrix = at.lane // 8
        line = first + matrix // 2 * 8 + at.lane % 8
        for block in range(_COLUMNS // 16):
            words = load_matrix(tile_at + line * _ROW_BYTES + _chunk(block * 2 + matrix % 2, line), transpose=True)
            for eight in range(2):
                low, high = words[2 * eight], words[2 * eight + 1]
                x = [low << 16, high << 16, low & _UPPER, high & _UPPER]
                for projections in range(self.blocks):
                    place = (block * self.blocks + projections) * 4
                    added = mma("tf32", x, p[eight][projections], [sums[place + index] for index in range(4)])
                    for index in range(4):
                        sums[place + index] = added[index]

    def store_part(self, given: _Given, at: _Lane, sums: Any, partials: Any, split: Any, chunk: Any) -> None:
        """Store a part of the rows' sums."""
        count = Int32(partials.shape[1])
        base = partials.iterator.toint() + Int64(split) * Int64(count) * given.k * 4
        for block in range(_COLUMNS // 16):
            for projections in range(self.blocks):
                for index in range(4):
                    row = projections * 8 + at.pair * 2 + index % 2
                    column = at.column + block * 16 + at.group + index // 2 * 8
                    inside = Int32(row < given.n) & Int32(column < given.k)
                    place = Int64(chunk * _CHUNK + row) * given.k + column
                    value = sums[(block * self.blocks + projections) * 4 + index]
                    store_global(base + place * 4, [as_bits(value)], 4, inside)

    @cute.kernel
    def add_parts(self, partials: cute.Tensor, dweight: cute.Tensor, count: Int64) -> None:
        """dW from the sums of parts of the rows, in their order."""
        width = min(self.access, 4)
        first = (Int64(cute.arch.block_idx()[0]) * _ADDING + cute.arch.thread_idx()[0]) * width
        inside = Int32(first < count)
        totals = cute.make_rmem_tensor(width, Float32)
        totals.fill(0.0)
        for part in cutlass.range(Int32(partials.shape[0]), unroll=_STAGES):
            words = load_global(partials.iterator.toint() + (count * part + first) * 4, width * 4, inside)
            for index in cutlass.range_constexpr(width):
                totals[index] = add(totals[index], as_float(words[index]))
        words = [as_bits(totals[index]) for index in range(width)]
        store_global(dweight.iterator.toint() + first * 4, words, width * 4, inside)


@cute.jit
def _add_beyond(
    given: Any, at: Any, weight: cute.Tensor, row: Int32, quarter: cutlass.Constexpr, sums: Any, rows: Int32
) -> None:
    base, step = weight.iterator.toint(), Int64(weight.stride[0]) * 4
    for turn in cutlass.range((cutlass.max(rows - _CHUNK, Int32(0)) + 7) // 8, unroll=1):
        first = _CHUNK + turn * 8 + at.pair
        p = [
            round_to_tf32(
                load_global(
                    given.p + Int64(row + at.group + line) * given.p_row + Int64(first + half) * 4,
                    4,
                    Int32(row + at.group + line < given.m) & Int32(first + half < rows),
                )[0]
            )
            for half in (0, 4)
            for line in (0, 8)
        ]
        for block in cutlass.range_constexpr(4):
            column = at.column + quarter * 32 + at.group // 2 * 8 + block * 2 + at.group % 2
            w = [
                round_to_tf32(
                    load_global(
                        base + Int64(first + half) * step + Int64(column) * 4,
                        4,
                        Int32(first + half < rows) & Int32(column < given.k),
                    )[0]
                )
                for half in (0, 4)
            ]
            added = mma("tf32", p, w, [sums[4 * block + index] for index in range(4)])
            for index in cutlass.range_constexpr(4):
                sums[4 * block + index] = added[index]


def _chunk(part: Any, line: Any) -> Any:
    """Byte of a row's 16-byte part: a column of eight rows, or the parts of any two neighbours, fall on all banks."""
    return (part ^ (((line & 1) << 2) | ((line >> 1) & 3))) * 16


def launcher(spec: MhcSpec) -> Any:
    """The host function ``launch(stream, x, weight, grad_proj, grad_r, r, dx, dweight, partials)``, to be compiled.

    Args:
        spec: What to compile for.
    """
    return _Backward(spec)


def fake_arguments(spec: MhcSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order."""
    return (
        fake_tensor("bfloat16", -1, rank=2, alignment=2 * spec.access),
        *(fake_tensor("float32", -1, rank=2, alignment=4) for _ in range(4)),
        fake_tensor("bfloat16", -1, rank=2),
        fake_tensor("float32", -1, rank=2),
        fake_tensor("float32", -1, rank=3),
    )
