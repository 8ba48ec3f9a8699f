"""Gradients of LayerNorm-Multiply-SiLU-Dropout: lanes keep their columns from row to row and add up in registers.

While a row is worked on, the next one is on its way into shared memory, every thread's part into words of its own.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.activations import sigmoid
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.column_sum import add_rows
from cudnn_fe.core.cute.exact import fused_multiply_add
from cudnn_fe.core.cute.ptx_base import copy_async, load_shared, store_shared
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import (
    VECTOR,
    row_address,
    store_floats,
    store_words,
    wait_for_copies,
)
from cudnn_fe.norm_rope.hstu_lmsd.op import BACKWARD_BLOCKS, LmsdSpec

__all__ = ["fake_arguments", "launcher"]

_PRODUCT, _X, _GATE = 0, 1, 2  # bits of the mask, and gradients among the operands that a row has
_X_ROWS, _U_ROWS, _OPERANDS = 3, 4, 5


class _Backward:
    def __init__(self, spec: LmsdSpec) -> None:
        self.spec, self.plan = spec, spec.plan
        self.per_row = spec.columns // VECTOR
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)
        block, count = self.groups.block, spec.plan.vectors
        self.plane = 16 * block  # bytes of one vector of every thread
        self.masks = _OPERANDS * count * self.plane
        self.statistics = self.masks + 8 * count * block
        self.buffer = self.statistics + 8 * block
        self.affine = 2 * self.buffer  # weight and bias, out of registers until they are wanted
        self.reduction = self.affine + 2 * count * self.plane
        self.shared_bytes = self.reduction + 4 * self.groups.shared_words(2)

    @cute.jit
    def launch(self, stream: cuda.CUstream, tensors: cutlass.Constexpr, scale: Float32) -> None:
        given, rows, affine, partials = tensors
        self.kernel(*given, *rows, *partials, scale).launch(
            grid=(partials[-1].shape[0], 1, 1),
            block=(self.groups.block, 1, 1),
            stream=stream,
            min_blocks_per_mp=BACKWARD_BLOCKS,
            preferred_smem_carveout=-1,  # the driver's choice; without it the compiler asks a GPU
        )
        pairs = [pair for pair in zip(partials, affine, strict=True) if pair[0] is not None]
        sums = [(partial, target.iterator.toint()) for partial, target in pairs]
        add_rows(stream, sums, self.spec.columns, "bfloat16")

    @cute.kernel
    def kernel(
        self,
        dy: cute.Tensor,
        x: cute.Tensor,
        u: cute.Tensor,
        weight: cute.Tensor,
        bias: cute.Tensor,
        mean: cute.Tensor,
        rstd: cute.Tensor,
        mask: Any,
        dx: cute.Tensor,
        du: cute.Tensor,
        weight_partials: Any,
        bias_partials: cute.Tensor,
        scale: Float32,
    ) -> None:
        count = self.plan.vectors
        shared = SmemAllocator().allocate(self.shared_bytes, 16).toint()
        thread = Int32(cute.arch.thread_idx()[0])
        group, lane = self.groups.place()
        block, blocks = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.grid_dim()[0])
        scaled, weight_sums, bias_sums = (cute.make_rmem_tensor(VECTOR * count, Float32) for _ in range(3))
        weight_sums.fill(0.0)
        bias_sums.fill(0.0)
        step = blocks * self.plan.groups
        first_row = Int64(block * self.plan.groups + group)
        rows = Int32(x.shape[0])
        operands = (dy, x, u, mean, rstd, mask)
        self.fetch(operands, first_row, Int32(first_row < rows), lane, thread, shared)
        for index in cutlass.range_constexpr(count):
            vector = lane + index * self.plan.threads
            for which, source in enumerate((weight, bias)):
                copy_async(
                    self.place(shared + self.affine, thread, which, index),
                    source.iterator.toint() + Int64(vector) * 16,
                    16,
                    Int32(vector < self.per_row),
                )
        for turn in cutlass.range((rows - block * self.plan.groups + step - 1) // step, unroll=1):
            row = first_row + Int64(turn) * step
            limit = cutlass.select_(row < rows, Int32(self.per_row), Int32(0))
            here, there = shared + (turn & 1) * self.buffer, shared + (1 - (turn & 1)) * self.buffer
            wait_for_copies()
            self.fetch(operands, row + step, Int32(row + step < rows), lane, thread, there)
            centre, spread = (
                load_shared(here + self.statistics + (which * self.groups.block + thread) * 4, 1, Float32)[0]
                for which in range(2)
            )
            shift = -centre * spread
            first, second = Float32(0.0), Float32(0.0)
            for index in cutlass.range_constexpr(count):
                gradient = self.undropped(here, thread, index, _PRODUCT, scale)
                direct = self.undropped(here, thread, index, _GATE, scale)
                x8, u8 = (widen_pairs(self.words(here, thread, which, index)) for which in (_X_ROWS, _U_ROWS))
                w8, b8 = (widen_pairs(self.words(shared + self.affine, thread, which, index)) for which in range(2))
                results = []
                for at in cutlass.range_constexpr(VECTOR):
                    normal = fused_multiply_add(x8[at], spread, shift)
                    gate, slope = u8[at], Float32(1.0)
                    if cutlass.const_expr(self.spec.apply_u_silu):
                        share = sigmoid(u8[at])
                        gate = u8[at] * share
                        slope = fused_multiply_add(gate, Float32(1.0) - share, share)
                    value = fused_multiply_add(normal, w8[at], b8[at])
                    results.append(gradient[at] * value * slope + direct[at] * slope)
                    of_norm = gradient[at] * gate
                    through = w8[at] * of_norm
                    scaled[index * VECTOR + at] = through
                    first += normal * through
                    second += through
                    bias_sums[index * VECTOR + at] += of_norm
                    if cutlass.const_expr(self.spec.compute_dweight):
                        weight_sums[index * VECTOR + at] += of_norm * normal
                self.store(du, row, lane, index, results, limit)
            first, second = self.groups.sum([first, second], shared + self.reduction, turn & 1)
            first, second = first * Float32(1.0 / self.spec.columns), second * Float32(1.0 / self.spec.columns)
            for index in cutlass.range_constexpr(count):
                direct = self.undropped(here, thread, index, _X, scale)
                x8 = widen_pairs(self.words(here, thread, _X_ROWS, index))
                results = []
                for at in cutlass.range_constexpr(VECTOR):
                    normal = fused_multiply_add(x8[at], spread, shift)
                    rest = scaled[index * VECTOR + at] - (normal * first + second)
                    results.append(direct[at] + rest * spread)
                self.store(dx, row, lane, index, results, limit)
        wait_for_copies()
        cute.arch.sync_threads()  # from here on the rows' memory holds sums
        if cutlass.const_expr(self.spec.compute_dweight):
            self.add_groups(weight_sums, weight_partials, shared, group, lane, block)
            cute.arch.sync_threads()
        self.add_groups(bias_sums, bias_partials, shared, group, lane, block)

    @cute.jit
    def fetch(
        self, operands: cutlass.Constexpr, row: Int64, inside: Int32, lane: Int32, thread: Int32, buffer: Int32
    ) -> None:
        """Begin to copy this thread's part of a row, to words of its own; zeros unless ``inside``."""
        dy, x, u, mean, rstd, mask = operands
        width = self.spec.columns * 2
        base = row_address(dy, row)
        behind_gate = base + width * int(self.spec.concat_u)
        sources = {_PRODUCT: behind_gate + width * int(self.spec.concat_x), _X_ROWS: row_address(x, row)}
        sources[_U_ROWS] = row_address(u, row)
        if cutlass.const_expr(self.spec.concat_u):
            sources[_GATE] = base
        if cutlass.const_expr(self.spec.concat_x):
            sources[_X] = behind_gate
        for index in cutlass.range_constexpr(self.plan.vectors):
            vector = lane + index * self.plan.threads
            valid = inside * Int32(vector < self.per_row)
            for which, source in sources.items():
                copy_async(self.place(buffer, thread, which, index), source + Int64(vector) * 16, 16, valid)
            if cutlass.const_expr(self.spec.dropout):
                at = mask.iterator.toint() + row * self.spec.columns + Int64(vector) * VECTOR
                copy_async(self.place_of_mask(buffer, thread, index), at, 8, valid)
        for which, statistic in enumerate((mean, rstd)):
            place = buffer + self.statistics + (which * self.groups.block + thread) * 4
            copy_async(place, statistic.iterator.toint() + row * 4, 4, inside)

    def place(self, buffer: Any, thread: Any, which: int, index: int) -> Any:
        return buffer + (which * self.plan.vectors + index) * self.plane + thread * 16

    def place_of_mask(self, buffer: Any, thread: Any, index: int) -> Any:
        return buffer + self.masks + (index * self.groups.block + thread) * 8

    def words(self, buffer: Any, thread: Any, which: int, index: int) -> list[Int32]:
        """A vector of one of the row's operands."""
        return load_shared(self.place(buffer, thread, which, index), 4)

    def undropped(self, buffer: Any, thread: Any, index: int, which: int, scale: Any) -> list[Float32]:
        """The gradient of a segment before dropout: scaled where it was kept, else 0, as where there is no segment."""
        if not {_PRODUCT: True, _X: self.spec.concat_x, _GATE: self.spec.concat_u}[which]:
            return [Float32(0.0)] * VECTOR
        values = widen_pairs(self.words(buffer, thread, which, index))
        if not self.spec.dropout:
            return values
        kept = load_shared(self.place_of_mask(buffer, thread, index), 2)
        results = []
        for at, value in enumerate(values):
            keep = (kept[at // 4] >> (at % 4 * 8 + which)) & 1
            results.append(cutlass.select_(keep != 0, value * scale, Float32(0.0)))
        return results

    def store(self, target: Any, row: Any, lane: Any, index: int, values: list[Any], limit: Any) -> None:
        vector = lane + index * self.plan.threads
        store_words(row_address(target, row) + Int64(vector) * 16, narrow_pairs(values), 16, Int32(vector < limit))

    @cute.jit
    def add_groups(
        self, sums: cute.Tensor, partials: cute.Tensor, shared: Int32, group: Int32, lane: Int32, block: Int32
    ) -> None:
        """Add the sums of the block's groups, in order, into the block's row of the partial sums."""
        row_bytes = self.plan.threads * self.plan.vectors * VECTOR * 4
        for index in cutlass.range_constexpr(self.plan.vectors):
            for half in cutlass.range_constexpr(2):
                at = shared + group * row_bytes + (lane + index * self.plan.threads) * 32 + half * 16
                store_shared(at, [sums[index * VECTOR + half * 4 + part] for part in range(4)], 16)
        cute.arch.sync_threads()
        thread = Int32(cute.arch.thread_idx()[0])
        quads = self.spec.columns // 4
        for turn in cutlass.range_constexpr((quads + self.groups.block - 1) // self.groups.block):
            quad = thread + turn * self.groups.block
            # Past the row's end the sums lie in padding or beyond it: read the first instead, and store nothing.
            source = shared + cutlass.select_(quad < quads, quad, Int32(0)) * 16
            totals = load_shared(source, 4, Float32)
            for other in cutlass.range_constexpr(1, self.plan.groups):
                part = load_shared(source + other * row_bytes, 4, Float32)
                totals = [total + value for total, value in zip(totals, part, strict=True)]
            at = partials.iterator.toint() + (Int64(block) * self.spec.columns + quad * 4) * 4
            store_floats(at, totals, Int32(quad < quads))


def _launcher_class(dropout: bool, dweight: bool) -> type[_Backward]:
    return {
        (True, True): _WithBoth,
        (True, False): _WithMask,
        (False, True): _WithWeight,
        (False, False): _WithNeither,
    }[dropout, dweight]


class _WithBoth(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, mask: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dweight: cute.Tensor, dbias: cute.Tensor, weight_partials: cute.Tensor, bias_partials: cute.Tensor,
        scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, mask)
        self.launch(stream, (given, (dx, du), (dweight, dbias), (weight_partials, bias_partials)), scale)


class _WithMask(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, mask: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dbias: cute.Tensor, bias_partials: cute.Tensor, scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, mask)
        self.launch(stream, (given, (dx, du), (None, dbias), (None, bias_partials)), scale)


class _WithWeight(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dweight: cute.Tensor, dbias: cute.Tensor, weight_partials: cute.Tensor, bias_partials: cute.Tensor,
        scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, None)
        self.launch(stream, (given, (dx, du), (dweight, dbias), (weight_partials, bias_partials)), scale)


class _WithNeither(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dbias: cute.Tensor, bias_partials: cute.Tensor, scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, None)
        self.launch(stream, (given, (dx, du), (None, dbias), (None, bias_partials)), scale)


def launcher(spec: LmsdSpec) -> Any:
    """The host function of a spec: operands, outputs, partial sums, scale; absent ones left out."""
    return _launcher_class(spec.dropout, spec.compute_dweight)(spec)


def fake_arguments(spec: LmsdSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""

    def matrix(kind: str = "bfloat16", alignment: int = 16) -> Any:
        return fake_tensor(kind, 1, rank=2, alignment=alignment)

    def vector(kind: str = "bfloat16", alignment: int = 16) -> Any:
        return fake_tensor(kind, 0, rank=1, alignment=alignment)

    affine = 2 if spec.compute_dweight else 1
    return (
        *(matrix() for _ in range(3)),
        *(vector() for _ in range(2)),
        *(vector("float32", 4) for _ in range(2)),
        *((matrix("int8", 8),) if spec.dropout else ()),
        *(matrix() for _ in range(2)),
        *(vector() for _ in range(affine)),
        *(matrix("float32") for _ in range(affine)),
        Float32(1.0),
    )
