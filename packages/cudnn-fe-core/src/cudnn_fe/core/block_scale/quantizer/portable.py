"""Quantises rows, columns or both in one pass over the source, on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.core.block_scale.quantizer.op import QuantizeSpec
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.block_quantize import BlockQuantizer, gather, reduce_scatter
from cudnn_fe.core.cute.block_tiles import (
    SIDE,
    THREADS,
    Matrix,
    ScalePlace,
    lane_place,
    load_vector,
    store_vector_bytes,
    tile_walk,
)
from cudnn_fe.core.cute.exact import multiply
from cudnn_fe.core.cute.ptx_base import assemble, load_global
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import as_bits, as_float, has_fp8
from cudnn_fe.core.cute.vectors import widen
from cudnn_fe.core.dtypes import dtype

__all__ = ["fake_arguments", "launcher"]

_ROW_LANES, _COLUMN_LANES = (2, 1), (16, 8)  # lane bits that a block of 32 spans
_ANY = (16, 8, 4, 2, 1)


class _Quantize:
    def __init__(self, spec: QuantizeSpec) -> None:
        self.spec = spec
        self.directions = []
        for direction, recipe in (("rows", spec.row_recipe), ("columns", spec.column_recipe)):
            if recipe is not None:
                quantizer = BlockQuantizer(spec.element, spec.scale, recipe, spec.quotient(recipe), has_fp8(spec.arch))
                place = ScalePlace(direction == "columns", spec.block, spec.packed)
                self.directions.append((quantizer, place))

    @cute.jit
    def __call__(self, stream: cuda.CUstream, x: cute.Tensor, *others: cute.Tensor) -> None:
        spec = self.spec
        norm = others[0] if cutlass.const_expr(spec.norm_rank is not None) else None
        results = others[1:] if cutlass.const_expr(spec.norm_rank is not None) else others
        amax = results[-1] if cutlass.const_expr(spec.amax) else None
        rows, columns = Int32(x.shape[1]), Int32(x.shape[2])
        if cutlass.const_expr(spec.packed):
            # Scales of rows and columns that do not exist are zeros in the atoms.
            rows, columns = (rows + 127) // 128 * 128, (columns + 127) // 128 * 128
        blocks, walk = tile_walk(rows, columns, x.shape[0])
        if cutlass.const_expr(amax is not None):
            self.clear(amax).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)
        self.kernel(x, norm, results, amax, walk).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def clear(self, amax: cute.Tensor) -> None:
        store_global(amax.iterator.toint(), [Int32(0)], 4, Int32(1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, norm: Any, results: Any, amax: Any, walk: Any) -> None:
        spec = self.spec
        at = lane_place(walk)
        lane = cute.arch.thread_idx()[0] % 32
        source = Matrix.of(x, (0, 1, 2))
        bits = x.element_type.width
        left = source.columns - at.column
        loaded = []
        for index in cutlass.range_constexpr(SIDE):
            address = source.place(at.batch, at.row + index, at.column * (bits // 8))
            loaded.append(load_vector(address, bits, spec.x_access, left, Int32(at.row + index < source.rows)))
        values = [widen(x.element_type, words, SIDE) for words in loaded]
        factor = None
        if cutlass.const_expr(norm is not None):
            factor = as_float(load_global(norm.iterator.toint(), 4, Int32(1))[0])
        if cutlass.const_expr(amax is not None):
            self.fold(values, amax, lane)
        for number in cutlass.range_constexpr(len(self.directions)):
            quantizer, place = self.directions[number]
            lines = [[quantizer.prepared(value, factor) for value in row] for row in values]
            self.quantize(quantizer, place, lines, factor, results[2 * number], results[2 * number + 1], source, at)

    def quantize(
        self,
        quantizer: BlockQuantizer,
        place: ScalePlace,
        values: list[list[Any]],
        norm: Any,
        codes: Any,
        scales: Any,
        source: Matrix,
        at: Any,
    ) -> None:
        """One direction: largest magnitudes, scales, codes."""
        lane = cute.arch.thread_idx()[0] % 32
        lines = [list(line) for line in zip(*values, strict=True)] if place.columns else values
        largest = []
        for line in lines:
            found = quantizer.larger(line[0], line[1])
            for value in line[2:]:
                found = quantizer.larger(found, value)
            largest.append(found)
        masks = (_COLUMN_LANES if place.columns else _ROW_LANES)[1 if place.block == 16 else 0 :]
        owned, first = reduce_scatter(largest, masks, lane, quantizer.larger)
        pairs = [quantizer.scale_and_multiplier(one, norm) for one in owned]
        offset, step, _ = place.locate(source, at, first)
        base = scales.iterator.toint() + offset
        for index, (code, _) in enumerate(pairs):
            _, _, valid = place.locate(source, at, first + index)
            store_global(base + step * index, [code], 1, valid)
        multipliers = gather([multiplier for _, multiplier in pairs], masks, lane)
        self.store(quantizer, place, values, multipliers, codes, source, at)

    def store(
        self,
        quantizer: BlockQuantizer,
        place: ScalePlace,
        values: list[list[Any]],
        multipliers: list[Any],
        codes: Any,
        source: Matrix,
        at: Any,
    ) -> None:
        """A lane's codes: eight rows of eight, or four of eight pairs of rows."""
        target = Matrix.of(codes, (0, 1, 2))
        left = source.columns - at.column
        scaled = [
            [multiply(value, multipliers[k if place.columns else j]) for k, value in enumerate(row)]
            for j, row in enumerate(values)
        ]
        fp4 = quantizer.element == "float4_e2m1fn"
        access = self.spec.out_access
        if fp4 and place.columns:
            for j in range(0, SIDE, 2):
                together = [value for pair in zip(scaled[j], scaled[j + 1], strict=True) for value in pair]
                address = target.place(at.batch, (at.row + j) // 2, at.column)
                inside = Int32(at.row + j < source.rows)
                store_vector_bytes(address, quantizer.words(together), 8, access, left, inside)
            return
        bits = 4 if fp4 else 8
        for j in range(SIDE):
            address = target.place(at.batch, at.row + j, at.column * bits // 8)
            inside = Int32(at.row + j < source.rows)
            store_vector_bytes(address, quantizer.words(scaled[j]), bits, access, left, inside)

    @cute.jit
    def fold(self, values: cutlass.Constexpr, amax: cute.Tensor, lane: Int32) -> None:
        """Take this warp's largest magnitude into ``amax``, whose bits order as numbers do, NaN above all."""
        largest = Int32(0)
        for row in values:
            for value in row:
                largest = cutlass.max(largest, as_bits(value) & 0x7FFFFFFF)
        for mask in _ANY:
            largest = cutlass.max(largest, cute.arch.shuffle_sync_bfly(largest, mask))
        address = amax.iterator.toint()
        # Few warps hold more than all before them: reading first spares most of the atomics, which all meet here.
        (before,) = assemble("ld.relaxed.gpu.global.b32 $0, [$1];", [Int32], [address])
        if Int32(lane == 0) & Int32(largest > before) != 0:
            assemble("red.global.max.s32 [$0], $1;", [], [address, cutlass.min(largest, Int32(0x7FC00000))])


def launcher(spec: QuantizeSpec) -> Any:
    """The host function ``launch(stream, x, [norm], *results)`` of a spec, to be compiled.

    Results are codes and scales along rows, then along columns, then the largest magnitude: those that the spec has.
    """
    return _Quantize(spec)


def fake_arguments(spec: QuantizeSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order; no stride is fixed, since a dim of extent 1 may have any."""
    size = dtype(spec.x_dtype).itemsize
    given = [fake_tensor(spec.x_dtype, -1, alignment=min(max(spec.x_access * size, size), 16))]
    if spec.norm_rank is not None:
        given.append(fake_tensor("float32", -1, rank=spec.norm_rank, alignment=4))
    for recipe in (spec.row_recipe, spec.column_recipe):
        if recipe is not None:
            given.append(fake_tensor(spec.codes_dtype, -1))
            given.append(fake_tensor(spec.scale, -1, rank=spec.scales_rank))
    if spec.amax:
        given.append(fake_tensor("float32", -1, rank=1))
    return tuple(given)
