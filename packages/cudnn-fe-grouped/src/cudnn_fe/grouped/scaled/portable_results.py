"""D by rows and by columns, their scales, and each expert's amax, from float32 values of a warp's tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
from cutlass import Int32

from cudnn_fe.core.cute.block_quantize import BlockQuantizer, quantize_tile
from cudnn_fe.core.cute.block_tiles import LanePlace, Matrix, ScalePlace, store_rows, tile_walk
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.small_floats import as_float, has_fp8
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.scaled.portable_tile_rows import ExpertColumns, TileRows
from cudnn_fe.grouped.scaled.result_spec import ResultSpec

__all__ = ["MATRIX", "TileResults", "kept", "scale_walk"]

MATRIX = (2, 0, 1)  # batch, row and column dim of (M, X), which has no batch


def scale_walk(rows: Any, columns: Any, wide: int) -> tuple[Any, Any]:
    """`tile_walk` over a product whose results have scales: all of their atoms, whose padding is zeros.

    Args:
        rows: M.
        columns: N.
        wide: Columns of the product for each of the result.
    """
    side = 128 * wide
    return tile_walk((Int32(rows) + 127) // 128 * 128, (Int32(columns) + (side - 1)) // side * side, 1)


def kept(values: list[list[Any]], inside: list[Any], left: Any) -> list[list[Any]]:
    """Rows of values with zeros where a row is no expert's, and from column ``left`` on."""
    zero = cutlass.Float32(0.0)
    return [
        [cutlass.select_((own & Int32(k < left)) != 0, value, zero) for k, value in enumerate(row)]
        for row, own in zip(values, inside, strict=True)
    ]


class TileResults:
    """Stores results of a warp's tile.

    Args:
        spec: What to compile for.
        offsets: (L,) ends.
        rows: The tile's rows.
        matrix: The values' extents; its address does not matter.
        norm: One element, or None.
    """

    def __init__(self, spec: ResultSpec, offsets: Any, rows: TileRows, matrix: Matrix, norm: Any) -> None:
        self.spec, self.offsets, self.rows, self.matrix = spec, offsets, rows, matrix
        self.native = has_fp8(spec.arch)
        self.norm = None if norm is None else as_float(load_global(norm.iterator.toint(), 4, Int32(1))[0])

    def store(self, tensor: Any, values: list[list[Any]], at: LanePlace, access: int) -> None:
        """Round values and store those of the matrix, or of the rows up to the last end."""
        kind = dtype(tensor.element_type)
        store_rows(self.target(tensor), kind.name, values, at, access, self.native, kind.bits)

    def target(self, tensor: Any) -> Matrix:
        """The part of a result that is written, in elements."""
        rows = self.matrix.rows if self.spec.zero_tail else self.rows.end(self.offsets, self.matrix)
        return replace(Matrix.of(tensor, MATRIX), rows=rows, columns=self.matrix.columns)

    def quantised(
        self, tensor: Any, scales: Any, values: list[list[Any]], at: LanePlace, access: int, columns: bool
    ) -> None:
        """Quantise values along rows or columns; values outside are zeros."""
        recipe = self.spec.recipes[1 if columns else 0]
        quantizer = BlockQuantizer(self.spec.dtype, "float8_e8m0fnu", recipe, self.spec.quotient, self.native)
        place = ScalePlace(columns, 32, packed=True)
        if columns and self.spec.expert_columns:
            place = ExpertColumns.of(self.offsets, self.rows, self.matrix)
        address = scales.iterator.toint()
        scaled = quantize_tile(quantizer, place, values, self.norm, address, self.matrix, at)
        self.store(tensor, scaled, at, access)

    def finish(
        self, values: list[list[Any]], at: LanePlace, access: int, d: Any, d_col: Any, amax: Any, scales: Any
    ) -> None:
        """D, D by columns, the largest magnitudes (L, 1), and the two scales, as far as the spec asks for them."""
        if self.spec.keep_amax:
            self.rows.fold_amax(amax.iterator.toint(), 4, values, at)
        if not self.spec.recipes:
            self.store(d, values, at, access)
            return
        for tensor, packed, columns in zip((d, d_col), scales, (False, True), strict=True):
            self.quantised(tensor, packed, values, at, access, columns)
