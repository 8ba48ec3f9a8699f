"""Gradients of LayerNorm-Multiply-SiLU-Dropout: threads keep their columns from row to row and add up in registers.

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
    load_words,
    row_address,
    store_floats,
    store_words,
    wait_for_copies,
)
from cudnn_fe.norm_rope.hstu_lmsd.dropout import GATE, PRODUCT, X
from cudnn_fe.norm_rope.hstu_lmsd.kernels import LmsdSpec
from cudnn_fe.norm_rope.hstu_lmsd.portable_kept import kept_pairs

__all__ = ["fake_arguments", "launcher"]

_X, _U, _OPERANDS = 3, 4, 5  # rows in shared memory: after the gradients of y's segments, which are planes 0 to 2
_BYTES = 2 * VECTOR


class _Backward:
    def __init__(self, spec: LmsdSpec) -> None:
        self.spec, self.plan = spec, spec.plan
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)
        block = self.groups.block
        self.masks = _OPERANDS * _BYTES * block
        self.statistics = self.masks + VECTOR * block
        self.buffer = self.statistics + 8 * block
        self.reduction = 2 * self.buffer
        self.shared_bytes = self.reduction + 4 * self.groups.shared_words(2)

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *arguments: Any, **constants: Any) -> None:
        tensors = list(arguments)
        # JAX gives the scale by name.
        scale = Float32(constants["scale"]) if cutlass.const_expr("scale" in constants) else tensors.pop()
        mask = tensors.pop(7) if cutlass.const_expr(self.spec.dropout) else None
        given, rows, rest = tensors[:7], tensors[7:9], tensors[9:]
        affine, partials = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        self.kernel(*given, mask, *rows, partials, scale).launch(
            grid=(partials[0].shape[0], 1, 1), block=(self.groups.block, 1, 1), stream=stream
        )
        sums = [(partial, target.iterator.toint()) for partial, target in zip(partials, affine, strict=True)]
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
        partials: Any,
        scale: Float32,
    ) -> None:
        shared = SmemAllocator().allocate(self.shared_bytes, 16).toint()
        thread = Int32(cute.arch.thread_idx()[0])
        group, lane = self.groups.place()
        block, blocks = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.grid_dim()[0])
        through, weight_sums, bias_sums = (cute.make_rmem_tensor(VECTOR, Float32) for _ in range(3))
        weight_sums.fill(0.0)
        bias_sums.fill(0.0)
        step = blocks * self.plan.groups
        first_row = Int64(block * self.plan.groups + group)
        rows = Int32(x.shape[0])
        column = Int64(lane) * _BYTES
        mine = Int32(lane < self.spec.columns // VECTOR)
        operands = (dy, x, u, mean, rstd, mask)
        self.fetch(operands, first_row, Int32(first_row < rows), mine, lane, thread, shared)
        weights, biases = (load_words(source.iterator.toint() + column, 16, mine) for source in (weight, bias))
        for turn in cutlass.range((rows - block * self.plan.groups + step - 1) // step, unroll=1):
            row = first_row + Int64(turn) * step
            valid = mine * Int32(row < rows)
            here, there = shared + (turn & 1) * self.buffer, shared + (1 - (turn & 1)) * self.buffer
            wait_for_copies()
            self.fetch(operands, row + step, Int32(row + step < rows), mine, lane, thread, there)
            centre, spread = (
                load_shared(here + self.statistics + (which * self.groups.block + thread) * 4, 1, Float32)[0]
                for which in range(2)
            )
            shift = -centre * spread
            first, second = Float32(0.0), Float32(0.0)
            gradient, direct = (self.undropped(here, thread, plane) for plane in (PRODUCT, GATE))
            x8, u8, w8, b8 = (
                widen_pairs(words) for words in (*(self.words(here, thread, r) for r in (_X, _U)), weights, biases)
            )
            results = []
            for at in cutlass.range_constexpr(VECTOR):
                normal = fused_multiply_add(x8[at], spread, shift)
                gate, slope = u8[at], Float32(1.0)
                if cutlass.const_expr(self.spec.apply_u_silu):
                    share = sigmoid(u8[at])
                    gate = u8[at] * share
                    slope = fused_multiply_add(gate, Float32(1.0) - share, share)
                value = fused_multiply_add(normal, w8[at], b8[at])
                results.append(fused_multiply_add(gradient[at], value, direct[at]) * (slope * scale))
                of_norm = gradient[at] * gate
                through[at] = w8[at] * of_norm
                first += normal * through[at]
                second += through[at]
                bias_sums[at] += of_norm
                if cutlass.const_expr(self.spec.compute_dweight):
                    weight_sums[at] += of_norm * normal
            store_words(row_address(du, row) + column, narrow_pairs(results), 16, valid)
            first, second = self.groups.sum([first, second], shared + self.reduction, turn & 1)
            first, second = first * Float32(1.0 / self.spec.columns), second * Float32(1.0 / self.spec.columns)
            direct = self.undropped(here, thread, X)
            results = []
            for at, value in enumerate(widen_pairs(self.words(here, thread, _X))):
                normal = fused_multiply_add(value, spread, shift)
                rest = through[at] - (normal * first + second)
                results.append(fused_multiply_add(rest, spread, direct[at]) * scale)
            store_words(row_address(dx, row) + column, narrow_pairs(results), 16, valid)
        wait_for_copies()
        cute.arch.sync_threads()  # from here on the rows' memory holds sums
        if cutlass.const_expr(self.spec.compute_dweight):
            self.add_groups(weight_sums, partials[0], shared, block, scale)
            cute.arch.sync_threads()
        self.add_groups(bias_sums, partials[-1], shared, block, scale)

    @cute.jit
    def fetch(
        self,
        operands: cutlass.Constexpr,
        row: Int64,
        inside: Int32,
        mine: Int32,
        lane: Int32,
        thread: Int32,
        buffer: Int32,
    ) -> None:
        """Begin to copy this thread's part of a row, to words of its own; zeros where there is none."""
        dy, x, u, mean, rstd, mask = operands
        sources = {_X: row_address(x, row), _U: row_address(u, row)}
        for segment, plane in enumerate(self.spec.planes):
            sources[plane] = row_address(dy, row) + segment * self.spec.columns * 2
        valid = inside * mine
        for which, source in sources.items():
            copy_async(self.place(buffer, thread, which), source + Int64(lane) * _BYTES, _BYTES, valid)
        if cutlass.const_expr(self.spec.dropout):
            at = mask.iterator.toint() + row * self.spec.columns + Int64(lane) * VECTOR
            copy_async(buffer + self.masks + thread * VECTOR, at, VECTOR, valid)
        for which, statistic in enumerate((mean, rstd)):
            place = buffer + self.statistics + (which * self.groups.block + thread) * 4
            copy_async(place, statistic.iterator.toint() + row * 4, 4, inside)

    def place(self, buffer: Any, thread: Any, which: int) -> Any:
        return buffer + (which * self.groups.block + thread) * _BYTES

    def words(self, buffer: Any, thread: Any, which: int) -> list[Int32]:
        """This thread's vector of one of the row's operands."""
        return load_shared(self.place(buffer, thread, which), 4)

    def undropped(self, buffer: Any, thread: Any, plane: int) -> list[Float32]:
        """The gradient of a segment where it was kept, not yet scaled; else 0, as where there is no segment."""
        if plane not in self.spec.planes:
            return [Float32(0.0)] * VECTOR
        words = self.words(buffer, thread, plane)
        if self.spec.dropout:
            words = kept_pairs(words, load_shared(buffer + self.masks + thread * VECTOR, 2), plane)
        return widen_pairs(words)

    @cute.jit
    def add_groups(self, sums: cute.Tensor, partials: cute.Tensor, shared: Int32, block: Int32, scale: Float32) -> None:
        """Add the sums of the block's groups, in order, into the block's row of the partial sums, scaled."""
        row_bytes = self.plan.threads * VECTOR * 4
        thread = Int32(cute.arch.thread_idx()[0])
        for half in cutlass.range_constexpr(2):
            at = shared + thread * (VECTOR * 4) + half * 16
            store_shared(at, [sums[half * 4 + part] * scale for part in range(4)], 16)
        cute.arch.sync_threads()
        quad, quads = thread, self.spec.columns // 4  # no more of them than threads
        # Past the row's end the sums lie in padding or beyond it: read the first instead, and store nothing.
        source = shared + cutlass.select_(quad < quads, quad, Int32(0)) * 16
        totals = cute.make_rmem_tensor(4, Float32)
        totals.fill(0.0)
        for other in cutlass.range(self.plan.groups, unroll=4):
            for at, value in enumerate(load_shared(source + other * row_bytes, 4, Float32)):
                totals[at] += value
        at = partials.iterator.toint() + (Int64(block) * self.spec.columns + quad * 4) * 4
        store_floats(at, [totals[part] for part in range(4)], Int32(quad < quads))


def launcher(spec: LmsdSpec) -> Any:
    """The host function of a spec: operands, outputs, partial sums, scale; absent ones left out."""
    return _Backward(spec)


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
