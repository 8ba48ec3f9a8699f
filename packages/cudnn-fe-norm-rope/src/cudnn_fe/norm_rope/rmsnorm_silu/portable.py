"""RMSNorm + SiLU: several rows a block, a row in registers between its two passes, stored in its final format."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.activations import silu
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import divide, reciprocal_square_root
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_vectors, row_address, store_global, store_words
from cudnn_fe.core.cute.small_floats import e2m1_word, fp8_words, has_fp8
from cudnn_fe.norm_rope.rmsnorm_silu.op import BLOCK, SiluSpec

__all__ = ["fake_arguments", "launcher"]

_LEAST_SCALE = 1.17549435e-38


class _RmsNormSilu:
    def __init__(self, spec: SiluSpec) -> None:
        self.spec, self.plan = spec, spec.plan
        self.per_row = spec.columns // VECTOR
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)
        self.tile = spec.plan.threads * spec.plan.vectors
        self.native_fp8 = has_fp8(spec.arch)

    @cute.jit
    def launch(self, stream: cuda.CUstream, x: Any, weight: Any, out: Any, scales: Any, eps: Float32) -> None:
        grid = ((x.shape[0] - 1) // self.plan.groups + 1, 1, 1)
        self.kernel(x, weight, out, scales, eps).launch(grid=grid, block=(self.groups.block, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, scales: Any, eps: Float32) -> None:
        shared = SmemAllocator().allocate(4 * self.groups.shared_words(), 16).toint()
        group, lane = self.groups.place()
        row = Int64(cute.arch.block_idx()[0]) * self.plan.groups + group
        limit = cutlass.select_(row < Int64(x.shape[0]), Int32(self.per_row), Int32(0))
        words = cute.make_rmem_tensor(4 * self.plan.vectors, Int32)
        weights = cute.make_rmem_tensor(4 * self.plan.vectors, Int32)
        source, width = row_address(x, row), self.spec.width
        total = Float32(0.0)
        for tile in cutlass.range(self.plan.tiles, unroll=1):
            load_vectors(words, source, tile * self.tile + lane, self.plan.threads, limit, width)
            if cutlass.const_expr(self.plan.tiles == 1):
                load_vectors(weights, weight.iterator.toint(), lane, self.plan.threads, self.per_row, width)
            total += self.squares(words)
        (total,) = self.groups.sum([total], shared, Int32(0))
        scale = reciprocal_square_root(total / Float32(self.spec.columns) + eps)
        for tile in cutlass.range(self.plan.tiles, unroll=1):
            first = tile * self.tile + lane
            if cutlass.const_expr(self.plan.tiles > 1):
                load_vectors(words, source, first, self.plan.threads, limit, width)
                load_vectors(weights, weight.iterator.toint(), first, self.plan.threads, self.per_row, width)
            for index in cutlass.range_constexpr(self.plan.vectors):
                values = widen_pairs([words[index * 4 + part] for part in range(4)])
                factors = widen_pairs([weights[index * 4 + part] for part in range(4)])
                activated = [silu(f * (scale * v)) for v, f in zip(values, factors, strict=True)]
                vector = first + index * self.plan.threads
                self.store(out, scales, row, vector, activated, Int32(vector < limit))

    @cute.jit
    def squares(self, words: cute.Tensor) -> Float32:
        total = Float32(0.0)
        for index in cutlass.range_constexpr(self.plan.vectors):
            for value in widen_pairs([words[index * 4 + part] for part in range(4)]):
                total += value * value
        return total

    @cute.jit
    def store(self, out: Any, scales: Any, row: Int64, vector: Int32, values: cutlass.Constexpr, valid: Int32) -> None:
        place = row * self.per_row + vector
        base = out.iterator.toint()
        if cutlass.const_expr(self.spec.out_dtype == "bfloat16"):
            store_words(base + place * 16, narrow_pairs(values), 16, valid)
        elif cutlass.const_expr(self.spec.out_dtype == "float8_e4m3fn"):
            store_global(base + place * 8, fp8_words("float8_e4m3fn", values, self.native_fp8), 8, valid)
        else:
            top = Float32(0.0)
            for value in values:
                top = cute.arch.fmax(top, cute.arch.fmax(value, -value))
            top = cute.arch.fmax(top, cute.arch.shuffle_sync_bfly(top, 1))  # a block of 16 is a pair of lanes
            divisor = cute.arch.fmax(divide(top, 6.0), Float32(_LEAST_SCALE))
            inverse = divide(1.0, divisor)
            store_global(base + place * 4, [e2m1_word([value * inverse for value in values])], 4, valid)
            code = fp8_words("float8_e4m3fn", [divisor] * 4, self.native_fp8)[0] & 0xFF
            at = scales.iterator.toint() + place // (BLOCK // VECTOR)
            store_global(at, [code], 1, valid * (1 - (vector & 1)))


class _OneResult(_RmsNormSilu):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps: Float32
    ) -> None:
        self.launch(stream, x, weight, out, None, eps)


class _WithScales(_RmsNormSilu):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        x: cute.Tensor,
        weight: cute.Tensor,
        out: cute.Tensor,
        scales: cute.Tensor,
        eps: Float32,
    ) -> None:
        self.launch(stream, x, weight, out, scales, eps)


def launcher(spec: SiluSpec) -> Any:
    """The host function ``launch(stream, x, weight, out[, block_scale], eps)`` of a spec, to be compiled."""
    return _WithScales(spec) if spec.out_dtype == "float4_e2m1fn" else _OneResult(spec)


def fake_arguments(spec: SiluSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, weight, out[, block_scale], eps)."""
    given = (
        fake_tensor("bfloat16", -1, rank=spec.x_rank, alignment=min(spec.width, 16)),
        fake_tensor("bfloat16", -1, rank=spec.w_rank, alignment=min(spec.width, 16)),
    )
    results: tuple[Any, ...]
    if spec.out_dtype == "float4_e2m1fn":
        results = (fake_tensor("uint8", 1, rank=2), fake_tensor("float8_e4m3fn", 1, rank=2))
    else:
        results = (fake_tensor(spec.out_dtype, -1, rank=spec.x_rank),)
    return (*given, *results, Float32(1e-6))
