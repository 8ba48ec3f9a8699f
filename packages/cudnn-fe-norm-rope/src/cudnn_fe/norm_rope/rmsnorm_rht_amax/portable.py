"""RMSNorm + Hadamard + amax: a block takes the rows of one amax, a row stays in registers between its two passes."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import reciprocal_square_root
from cudnn_fe.core.cute.hadamard import hadamard16_of_lane_pair
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_vectors, row_address, store_words
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import RowSpec

__all__ = ["fake_arguments", "launcher"]


class _RmsNormRhtAmax:
    def __init__(self, spec: RowSpec) -> None:
        self.columns, self.width, self.plan = spec.columns, spec.width, spec.plan
        self.per_row = spec.columns // VECTOR
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)
        self.tile = spec.plan.threads * spec.plan.vectors

    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, amax: cute.Tensor, eps: Float32
    ) -> None:
        grid = (amax.shape[0], 1, 1)
        self.kernel(x, w, o, amax, eps).launch(grid=grid, block=(self.groups.block, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, amax: cute.Tensor, eps: Float32) -> None:
        shared = SmemAllocator().allocate(4 * self.groups.shared_words(), 16).toint()
        chunk = Int32(cute.arch.block_idx()[0])
        rows = Int32(x.shape[0]) // Int32(amax.shape[0])
        group, lane = self.groups.place()
        words = cute.make_rmem_tensor(4 * self.plan.vectors, Int32)
        weights = cute.make_rmem_tensor(4 * self.plan.vectors, Int32)
        one_tile = cutlass.const_expr(self.plan.tiles == 1)
        if one_tile:
            load_vectors(weights, w.iterator.toint(), lane, self.plan.threads, self.per_row, self.width)
        top = Float32(0.0)
        for turn in cutlass.range((rows + self.plan.groups - 1) // self.plan.groups, unroll=1):
            inside = turn * self.plan.groups + group
            row = Int64(chunk) * rows + inside
            limit = cutlass.select_(inside < rows, Int32(self.per_row), Int32(0))
            source = row_address(x, row)
            total = Float32(0.0)
            for tile in cutlass.range(self.plan.tiles, unroll=1):
                load_vectors(words, source, tile * self.tile + lane, self.plan.threads, limit, self.width)
                total += self.squares(words)
            (total,) = self.groups.sum([total], shared, turn & 1)
            scale = reciprocal_square_root(total / Float32(self.columns) + eps)
            for tile in cutlass.range(self.plan.tiles, unroll=1):
                first = tile * self.tile + lane
                if cutlass.const_expr(self.plan.tiles > 1):
                    load_vectors(words, source, first, self.plan.threads, limit, self.width)
                    load_vectors(weights, w.iterator.toint(), first, self.plan.threads, self.per_row, self.width)
                top = self.transform(words, weights, scale, row_address(o, row), first, limit, top)
        top = self.groups.maximum_of_block(top, shared)
        if cute.arch.thread_idx()[0] == 0:
            amax[chunk] = top

    @cute.jit
    def squares(self, words: cute.Tensor) -> Float32:
        total = Float32(0.0)
        for index in cutlass.range_constexpr(self.plan.vectors):
            for value in widen_pairs([words[index * 4 + part] for part in range(4)]):
                total += value * value
        return total

    @cute.jit
    def transform(
        self,
        words: cute.Tensor,
        weights: cute.Tensor,
        scale: Float32,
        target: Int64,
        first: Int32,
        limit: Int32,
        top: Float32,
    ) -> Float32:
        for index in cutlass.range_constexpr(self.plan.vectors):
            values = widen_pairs([words[index * 4 + part] for part in range(4)])
            factors = widen_pairs([weights[index * 4 + part] for part in range(4)])
            scaled = [value * scale * factor for value, factor in zip(values, factors, strict=True)]
            mixed = [value * Float32(0.25) for value in hadamard16_of_lane_pair(scaled, first)]
            for value in mixed:
                top = cute.arch.fmax(top, cute.arch.fmax(value, -value))
            vector = first + index * self.plan.threads
            store_words(target + Int64(vector) * 16, narrow_pairs(mixed), self.width, Int32(vector < limit))
        return top


def launcher(spec: RowSpec) -> Any:
    """The host function ``launch(stream, x, w, o, amax, eps)`` of a spec, to be compiled."""
    return _RmsNormRhtAmax(spec)


def fake_arguments(spec: RowSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, w, o, amax, eps)."""
    return (
        fake_tensor("bfloat16", 1, rank=spec.x_rank, alignment=spec.width),
        fake_tensor("bfloat16", 0, rank=spec.w_rank, alignment=spec.width),
        fake_tensor("bfloat16", 1, rank=spec.x_rank, alignment=16),
        fake_tensor("float32", 0, rank=1, alignment=4),
        Float32(1e-5),
    )
