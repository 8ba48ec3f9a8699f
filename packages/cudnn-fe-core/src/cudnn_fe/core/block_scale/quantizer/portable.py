"""Quantises rows, columns or both in one pass over the source, on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.core.block_scale.quantizer.spec import QuantizeSpec
from cudnn_fe.core.cute.amax import clear_amax, fold_amax
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import widen_pairs
from cudnn_fe.core.cute.block_quantize import (
    BlockQuantizer,
    first_code,
    largest_magnitudes,
    largest_of_pairs,
    store_codes,
    store_scales,
)
from cudnn_fe.core.cute.block_tiles import SIDE, THREADS, Matrix, ScalePlace, lane_place, load_lines, tile_walk
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.small_floats import as_float, has_fp8
from cudnn_fe.core.cute.vectors import widen
from cudnn_fe.core.dtypes import dtype

__all__ = ["fake_arguments", "launcher"]

# Least blocks of a multiprocessor, by the bits of an element of the source: with the registers that the compiler would
# like, too few are left to hide the loads' latency.
_BLOCKS = {16: 7, 32: 4}


class _Quantize:
    def __init__(self, spec: QuantizeSpec) -> None:
        self.spec = spec
        self.directions = []
        recipes = ((False, spec.row_recipe, spec.row_quotient), (True, spec.column_recipe, spec.column_quotient))
        for columns, recipe, quotient in recipes:
            if recipe is not None:
                native = has_fp8(spec.arch)
                quantizer = BlockQuantizer(spec.element, spec.scale, recipe, quotient, native, spec.x_dtype, True)
                self.directions.append((quantizer, ScalePlace(columns, spec.block, spec.packed)))

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
            clear_amax(stream, amax)
        self.kernel(x, norm, results, amax, walk).launch(
            grid=(blocks, 1, 1),
            block=(THREADS, 1, 1),
            min_blocks_per_mp=_BLOCKS[x.element_type.width],
            preferred_smem_carveout=-1,  # the driver's choice; without it the compiler asks a GPU
            stream=stream,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, norm: Any, results: Any, amax: Any, walk: Any) -> None:
        spec = self.spec
        at = lane_place(walk)
        source = Matrix.of(x, (0, 1, 2))
        bits = x.element_type.width
        loaded = load_lines(source, at, bits, spec.x_access)

        def row_of(index: int) -> Any:
            if cutlass.const_expr(spec.x_dtype == "bfloat16"):
                return widen_pairs(loaded[index])
            return widen(x.element_type, loaded[index], SIDE)

        factor = None
        if cutlass.const_expr(norm is not None):
            factor = as_float(load_global(norm.iterator.toint(), 4, Int32(1))[0])
        # All scales first: the maxima need the whole tile, the codes two rows at a time, made once for both directions.
        paired = bits == 16
        tile = loaded if paired else [row_of(j) for j in range(SIDE)]
        values = [value for row in tile for value in row]
        of_all = self.largest_of_all(values) if paired and spec.amax else values
        find = largest_of_pairs if paired else largest_magnitudes
        largest = [find(quantizer, place, tile) for quantizer, place in self.directions]
        multipliers = []
        for number in cutlass.range_constexpr(len(self.directions)):
            quantizer, place = self.directions[number]
            scales = results[2 * number + 1].iterator.toint()
            multipliers.append(
                store_scales(quantizer, place, largest[number], factor, scales, source, at, paired=paired)
            )
        targets = [Matrix.of(results[2 * number], (0, 1, 2)) for number in range(len(self.directions))]
        places = [
            first_code(*direction, target, at) for direction, target in zip(self.directions, targets, strict=True)
        ]
        for first in cutlass.range_constexpr(0, SIDE, 2):
            rows = [row_of(first), row_of(first + 1)]
            for number in cutlass.range_constexpr(len(self.directions)):
                quantizer, place = self.directions[number]
                target, by, goal = targets[number], multipliers[number], places[number]
                places[number] = store_codes(
                    quantizer, place, rows, by, factor, target, source, at, first, spec.out_access, goal
                )
        if cutlass.const_expr(amax is not None):
            fold_amax(amax.iterator.toint(), of_all)

    def largest_of_all(self, words: list[Any]) -> list[Any]:
        """Two magnitudes, the larger one the largest of pairs of them; NaN wins."""
        quantizer = BlockQuantizer("", "", "epilogue", 0.0, native=False, source=self.spec.x_dtype)
        largest, *others = words
        for word in others:
            largest = quantizer.larger_pair(largest, word)
        return quantizer.unpaired(largest)


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
