"""Tail RoPE + quantise-dequantise: one vector of channels a thread and step; neighbouring lanes share a scale."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import numpy as np
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import divide_by, fused_multiply_add, magnitude, multiply
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.rotary import rotate_pairs
from cudnn_fe.core.cute.row_vectors import VECTOR, load_floats, load_words, store_words
from cudnn_fe.core.cute.small_floats import E2M1, E4M3, as_bits, as_float, clamped_magnitude
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.norm_rope.rope_qdq.op import QdqSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 256
_STEPS = 4
_TAIL = 64
_SIGN = -0x80000000
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
        loaded, places = [], []
        for step in cutlass.range_constexpr(_STEPS):
            item = thread + step * _THREADS
            row = first_row + item // self.per_row
            valid = Int32(row < rows)
            channel = item % self.per_row * VECTOR - (self.spec.channels - _TAIL)
            rotated = valid * Int32(channel >= 0)
            loaded.append(load_words(x.iterator.toint() + (first + item) * 16, self.spec.width, valid))
            places.append((item, valid, channel, rotated, self.position(positions, row, rotated)))
        tables = []
        for step in cutlass.range_constexpr(_STEPS):
            _, _, channel, rotated, position = places[step]
            at = cache.iterator.toint() + position * (_TAIL * 4) + Int64(channel // 2) * 4
            width = self.spec.table_width
            tables.append((load_floats(at, 4, rotated, width), load_floats(at + _TAIL * 2, 4, rotated, width)))
        for step in cutlass.range_constexpr(_STEPS):
            item, valid, channel, _, _ = places[step]
            turned = narrow_pairs(rotate_pairs(widen_pairs(loaded[step]), *tables[step]))
            words = [cutlass.select_(channel >= 0, new, old) for new, old in zip(turned, loaded[step], strict=True)]
            store_words(
                out.iterator.toint() + (first + item) * 16,
                narrow_pairs(self.quantised(widen_pairs(words))),
                self.spec.width,
                valid,
            )

    def position(self, positions: Any, row: Any, rotated: Any) -> Int64:
        """The row's position, 0 where none is needed."""
        index = row // self.spec.rows_per_position
        if self.spec.position_dtype == "int32":
            return Int64(load_global(positions.iterator.toint() + index * 4, 4, rotated)[0])
        low, high = load_global(positions.iterator.toint() + index * 8, 8, rotated)
        return (Int64(high) << 32) | (Int64(low) & 0xFFFFFFFF)

    def quantised(self, values: list[Any]) -> list[Float32]:
        """Values on their group's grid."""
        largest = Float32(0.0)
        for value in values:
            largest = cute.arch.fmax(largest, magnitude(value))
        lanes = self.spec.group_size // VECTOR
        while lanes > 1:
            lanes //= 2
            largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, lanes))
        grid = self.grid_of_values
        if self.spec.scale_format == "e4m3":
            ratio = divide_by(cute.arch.fmax(largest, Float32(_E4M3_FLOOR)), 6.0)
            scale = E4M3.value(cute.arch.fmin(ratio, Float32(E4M3.largest)))
            inverse = cute.arch.rcp_approx(scale)
            # One correction: a quotient that the grid could tie on is exact, and no other comes near a tie.
            quotients = [multiply(value, inverse) for value in values]
            rests = [fused_multiply_add(-q, scale, value) for q, value in zip(quotients, values, strict=True)]
            scaled = [fused_multiply_add(r, inverse, q) for r, q in zip(rests, quotients, strict=True)]
        else:
            floor = cute.arch.fmax(largest, Float32(_FLOOR[self.spec.quantization]))
            bits = as_bits(multiply(floor, float(np.float32(1.0 / grid.largest))))
            exponent = (bits >> 23) + Int32((bits & 0x7FFFFF) != 0)
            scale, inverse = as_float(exponent << 23), as_float((254 - exponent) << 23)
            scaled = [multiply(value, inverse) for value in values]
        results = []
        for value, ratio in zip(values, scaled, strict=True):
            rounded = multiply(grid.value(clamped_magnitude(ratio, grid.largest)), scale)
            results.append(as_float(as_bits(rounded) | (as_bits(value) & _SIGN)))
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
