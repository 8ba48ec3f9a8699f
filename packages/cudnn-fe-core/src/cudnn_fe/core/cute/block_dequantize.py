"""Codes and scales to numbers, in tiles: a kernel of its own, and the first kernel of block-scaled GEMMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.block_quantize import e8m0_value
from cudnn_fe.core.cute.block_tiles import (
    SIDE,
    THREADS,
    Matrix,
    ScalePlace,
    lane_place,
    load_lines,
    store_rows,
    tile_walk,
)
from cudnn_fe.core.cute.exact import multiply
from cudnn_fe.core.cute.fp8_widen import fp8_floats
from cudnn_fe.core.cute.numerics import kind_name
from cudnn_fe.core.cute.ptx_base import assemble, load_global
from cudnn_fe.core.cute.small_floats import as_float

__all__ = ["DequantizeTiles"]

Dims = tuple[int, int, int]
_BLOCKS = 8  # least of a multiprocessor: a warp waits for its loads once, and others must work then


class DequantizeTiles:
    """Dequantises one matrix, or a batch of them; where the result is larger than the codes it is zero.

    Args:
        element: Element format's name.
        place: Where scales lie.
        scale: Scale format's name.
        in_access: Elements of a row that may be read at once.
        out_access: Elements of a row that may be written at once.
        dims: Batch, row and column dim of the codes; columns lie side by side.
        out_dims: Those of the result.
        native: Whether the target converts from FP8.
    """

    def __init__(
        self,
        element: str,
        place: ScalePlace,
        scale: str,
        in_access: int,
        out_access: int,
        dims: Dims = (0, 1, 2),
        out_dims: Dims = (0, 1, 2),
        native: bool = False,
    ) -> None:
        self.element, self.place, self.scale = element, place, scale
        self.dims, self.out_dims = dims, out_dims
        self.in_access, self.out_access = in_access, out_access
        self.fp4 = element == "float4_e2m1fn"
        self.native = native

    @cute.jit
    def launch(
        self, stream: cuda.CUstream, codes: cute.Tensor, scales: cute.Tensor, factor: Any, out: cute.Tensor
    ) -> None:
        """Launch on ``stream``."""
        batch, row, column = self.out_dims
        blocks, walk = tile_walk(out.shape[row], out.shape[column], out.shape[batch])
        self.kernel(codes, scales, factor, out, walk).launch(
            grid=(blocks, 1, 1),
            block=(THREADS, 1, 1),
            min_blocks_per_mp=_BLOCKS,
            preferred_smem_carveout=-1,  # the driver's choice; without it the compiler asks a GPU
            stream=stream,
        )

    @cute.kernel
    def kernel(self, codes: cute.Tensor, scales: cute.Tensor, factor: Any, out: cute.Tensor, walk: Any) -> None:
        """One tile of a warp."""
        target = Matrix.of(out, self.out_dims)
        self.tile(lane_place(walk), self.source(codes), scales.iterator.toint(), factor, target, out.element_type)

    def source(self, codes: Any) -> Matrix:
        """The codes' matrix, in elements."""
        paired = self.fp4 and self.place.columns
        return Matrix.of(codes, self.dims, 2 if self.fp4 and not paired else 1, 2 if paired else 1)

    def tile(self, at: Any, source: Matrix, scales: Any, factor: Any, target: Matrix, kind: Any) -> None:
        """Dequantise a lane's rows and columns.

        Args:
            at: Where they lie.
            source: The codes.
            scales: Address of the scales.
            factor: One element, or None.
            target: The result.
            kind: Its element type.
        """
        codes = self.load_scales(scales, source, at)
        loaded = self.load(source, at)
        by = self.multipliers(codes, factor)
        for j in range(SIDE):
            values = self.decode(loaded, j)
            products = [multiply(value, by[k if self.place.columns else j]) for k, value in enumerate(values)]
            place = replace(at, row=at.row + j)
            store_rows(target, kind_name(kind), [products], place, self.out_access, False, kind.width)

    def load(self, source: Matrix, at: Any) -> list[list[Int32]]:
        """Words of eight rows, or of four rows of pairs; zeros outside the codes."""
        if self.fp4 and self.place.columns:
            return load_lines(source, at, 8, self.in_access, SIDE // 2, per=2)
        return load_lines(source, at, 4 if self.fp4 else 8, self.in_access)

    def load_scales(self, scales: Any, source: Matrix, at: Any) -> list[Int32]:
        """The scale of each row, or column, all under way together."""
        offset, step, _ = self.place.locate(source, at, 0)
        base = scales + offset
        inside = Int32(at.row < source.rows) & Int32(at.column < source.columns)
        if self.place.packed:  # atoms have scales of rows and columns that do not exist
            return _eight_bytes(base, 16, inside)
        extent = source.columns if self.place.columns else source.rows
        first = at.column if self.place.columns else at.row
        return [load_global(base + step * index, 1, Int32(first + index < extent) & inside)[0] for index in range(SIDE)]

    def multipliers(self, codes: list[Int32], factor: Any) -> list[Float32]:
        """What each row's, or column's, codes are multiplied by."""
        values = [self.scale_value(code) for code in codes]
        if factor is None:
            return values
        by = as_float(load_global(factor.iterator.toint(), 4, Int32(1))[0])
        return [multiply(value, by) for value in values]

    def scale_value(self, code: Any) -> Float32:
        """The value of a scale's code."""
        if self.scale == "float8_e8m0fnu":
            return e8m0_value(code)
        return fp8_floats([code], "float8_e4m3fn")[0]

    def decode(self, loaded: list[list[Int32]], j: int) -> list[Float32]:
        """The eight elements of row ``j``."""
        if not self.fp4:
            return fp8_floats(loaded[j], self.element, self.native)
        if not self.place.columns:  # elements k and k + 4 are 16 bits apart
            pairs = [_e2m1_pair(loaded[j][0], 4 * k) for k in range(4)]
            return [pair[half] for half in range(2) for pair in pairs]
        found = []
        for word in loaded[j // 2]:
            even, odd = (_e2m1_pair(word, 4 * (j % 2) + at) for at in (0, 8))
            found += [even[0], odd[0], even[1], odd[1]]
        return found


def _eight_bytes(address: Any, step: int, wanted: Any) -> list[Int32]:
    """Eight bytes, ``step`` apart, or zeros."""
    loads = " ".join(f"mov.b32 ${i}, 0; @p ld.global.u8 ${i}, [$8+{step * i}];" for i in range(SIDE))
    code = f"{{ .reg .pred p; setp.ne.s32 p, $9, 0; {loads} }}"
    return assemble(code, [Int32] * SIDE, [Int64(address), Int32(wanted)])


def _e2m1_pair(word: Any, at: int) -> list[Float32]:
    """The elements at a bit of a word of FP4 codes, and 16 bits on.

    Exponent and significand in fp16's own places, the exponent 14 too low, make a number 2**-14 as large: subnormal
    where E2M1's is, and the product with 2**14 is exact.
    """

    def moved(to: int) -> str:
        return f"shl.b32 t, $2, {to - at};" if to >= at else f"shr.u32 t, $2, {at - to};"

    code = (
        f"{{ .reg .b32 t, m; .reg .b16 lo, hi; {moved(9)} and.b32 m, t, 0x0E000E00; {moved(12)} "
        "lop3.b32 m, m, t, 0x80008000, 0xF8; mov.b32 t, 0x74007400; mul.f16x2 m, m, t; "
        "mov.b32 {lo, hi}, m; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }"
    )
    return assemble(code, [Float32, Float32], [Int32(word)])
