"""Tail RoPE + quantise-dequantise: one vector of channels a thread and step; neighbouring lanes share a scale."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import numpy as np
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import divide_by, multiply
from cudnn_fe.core.cute.grid_pairs import BFLOAT16, FLOAT16, with_signs
from cudnn_fe.core.cute.ptx_base import assemble, load_global, permute_bytes
from cudnn_fe.core.cute.rotary import rotate_pairs
from cudnn_fe.core.cute.row_vectors import VECTOR, load_floats, load_words, store_words
from cudnn_fe.core.cute.small_floats import E2M1, E4M3, as_bits
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.norm_rope.rope_qdq.op import QdqSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 256
_STEPS = 4
_TAIL = 64
_WARP = 32
_BOTH_EXPONENTS = 0x00800080  # the last bit of the exponents of a pair of bfloat16
_FLOOR = {"fp4": 6.0 * 2.0**-126, "fp8": 1e-4}
_E4M3_FLOOR = 6.0 * 2.0**-9


class _RopeQdq:
    def __init__(self, spec: QdqSpec) -> None:
        self.spec = spec
        self.per_row = spec.channels // VECTOR
        self.grid_of_values = E2M1 if spec.quantization == "fp4" else E4M3

    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, x: cute.Tensor, cache: cute.Tensor, positions: cute.Tensor, out: cute.Tensor
    ) -> None:
        vectors = Int64(positions.shape[0]) * (self.spec.rows_per_position * self.per_row)
        blocks = Int32((vectors + _THREADS * _STEPS - 1) // (_THREADS * _STEPS))
        self.kernel(x, cache, positions, out).launch(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, cache: cute.Tensor, positions: cute.Tensor, out: cute.Tensor) -> None:
        # A block's vectors are whole rows, so lanes that share a scale are valid together.
        first = Int64(cute.arch.block_idx()[0]) * (_THREADS * _STEPS)
        first_row = first // self.per_row
        rows = Int64(positions.shape[0]) * self.spec.rows_per_position
        thread = Int32(cute.arch.thread_idx()[0])
        words, places = cute.make_rmem_tensor(4 * _STEPS, Int32), []
        for step in cutlass.range_constexpr(_STEPS):
            item = thread + step * _THREADS
            row = first_row + item // self.per_row
            valid = Int32(row < rows)
            for part, word in enumerate(load_words(x.iterator.toint() + (first + item) * 16, self.spec.width, valid)):
                words[step * 4 + part] = word
            places.append((item, row, valid))
        if cutlass.const_expr(self.per_row > _WARP):
            # A warp's vectors lie in the same part of every row: those without a tail have nothing to turn.
            if thread // _WARP % (self.per_row // _WARP) == self.per_row // _WARP - 1:
                self.turn(words, cache, positions, places)
        else:
            self.turn(words, cache, positions, places)
        for step in cutlass.range_constexpr(_STEPS):
            item, _, valid = places[step]
            quantised = self.quantised([words[step * 4 + part] for part in range(4)])
            store_words(out.iterator.toint() + (first + item) * 16, quantised, self.spec.width, valid)

    @cute.jit
    def turn(self, words: cute.Tensor, cache: cute.Tensor, positions: cute.Tensor, places: cutlass.Constexpr) -> None:
        """Turn the channels of the tail."""
        tables = []
        for step in cutlass.range_constexpr(_STEPS):
            item, row, valid = places[step]
            channel = item % self.per_row * VECTOR - (self.spec.channels - _TAIL)
            rotated = valid * Int32(channel >= 0)
            at = cache.iterator.toint() + self.position(positions, row, rotated) * (_TAIL * 4) + Int64(channel // 2) * 4
            width = self.spec.table_width
            tables.append((load_floats(at, 4, rotated, width), load_floats(at + _TAIL * 2, 4, rotated, width), channel))
        for step in cutlass.range_constexpr(_STEPS):
            cosines, sines, channel = tables[step]
            old = [words[step * 4 + part] for part in range(4)]
            new = narrow_pairs(rotate_pairs(widen_pairs(old), cosines, sines))
            for part in cutlass.range_constexpr(4):
                words[step * 4 + part] = cutlass.select_(channel >= 0, new[part], old[part])

    def position(self, positions: Any, row: Any, rotated: Any) -> Int64:
        """The row's position, 0 where none is needed."""
        index = row // self.spec.rows_per_position
        if self.spec.position_dtype == "int32":
            return Int64(load_global(positions.iterator.toint() + index * 4, 4, rotated)[0])
        low, high = load_global(positions.iterator.toint() + index * 8, 8, rotated)
        return (Int64(high) << 32) | (Int64(low) & 0xFFFFFFFF)

    def quantised(self, words: list[Any]) -> list[Int32]:
        """Pairs of values on their group's grid."""
        largest = self.largest(words)
        if self.spec.scale_format == "e4m3":
            return _on_scaled_grid(words, largest)
        floor = cute.arch.fmax(largest, Float32(_FLOOR[self.spec.quantization]))
        bits = as_bits(multiply(floor, float(np.float32(1.0 / self.grid_of_values.largest))))
        exponent = (bits >> 23) + Int32((bits & 0x7FFFFF) != 0)
        scale, inverse = exponent * _BOTH_EXPONENTS, (254 - exponent) * _BOTH_EXPONENTS
        results = []
        for word in words:
            rounded = BFLOAT16.on_grid(self.grid_of_values, BFLOAT16.multiply(word, inverse))
            results.append(with_signs(BFLOAT16.multiply(rounded, scale), word))
        return results

    def largest(self, words: list[Any]) -> Float32:
        """The largest magnitude of a group, in all lanes that share it."""
        while len(words) > 1:
            words = [BFLOAT16.larger_magnitude(a, b) for a, b in zip(words[::2], words[1::2], strict=True)]
        largest, lanes = words[0], self.spec.group_size // VECTOR
        while lanes > 1:
            lanes //= 2
            largest = BFLOAT16.larger_magnitude(largest, cute.arch.shuffle_sync_bfly(largest, lanes))
        low, high = widen_pairs([largest])
        return cute.arch.fmax(low, high)


def _on_scaled_grid(words: list[Any], largest: Float32) -> list[Int32]:
    """Values over a scale in E4M3, on the grid of E2M1, times the scale.

    A quotient of 8 bits over 4 that the grid does not tie on is 2^-9 of itself away from where it does: rounded to
    fp16, an approximate quotient is on the right side or exactly there.
    """
    ratio = divide_by(cute.arch.fmax(largest, Float32(_E4M3_FLOOR)), 6.0)
    scale = E4M3.value(cute.arch.fmin(ratio, Float32(E4M3.largest)))
    inverse = cute.arch.rcp_approx(scale)
    # Shifted to bfloat16's place of the exponent, fp16's bits are the value times 2^-112, and zero is zero.
    raised = as_bits(scale * Float32(2.0**112))
    both = permute_bytes(raised, raised, 0x3232)
    results = []
    for word in words:
        low, high = [multiply(value, inverse) for value in widen_pairs([word])]
        (halves,) = assemble("cvt.rn.f16x2.f32 $0, $1, $2;", [Int32], [high, low])
        rounded = FLOAT16.on_grid(E2M1, halves) >> 3
        results.append(with_signs(BFLOAT16.multiply(rounded, both), word))
    return results


def launcher(spec: QdqSpec) -> Any:
    """The host function ``launch(stream, x, cache, positions, out)`` of a spec, to be compiled; out may be x."""
    return _RopeQdq(spec)


def fake_arguments(spec: QdqSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, cache, positions, out)."""
    rows = fake_tensor("bfloat16", spec.rank - 1, rank=spec.rank, alignment=spec.width)
    return (
        rows,
        fake_tensor("float32", 1, rank=2, alignment=spec.table_width),
        fake_tensor(spec.position_dtype, 0, rank=1, alignment=dtype(spec.position_dtype).itemsize),
        fake_tensor("bfloat16", spec.rank - 1, rank=spec.rank, alignment=spec.width),
    )
