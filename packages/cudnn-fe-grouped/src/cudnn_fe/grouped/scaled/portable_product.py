"""Quantised rows times their experts' quantised weights: both to bfloat16, then a main loop of core's.

MXFP4 and NVFP4 values are exact in bfloat16, MXFP8 values wherever their scale is not among the smallest few: see
`cudnn_fe.core.block_scale.dequantizer`. So products are exact and sums are float32, as the definition's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute

import cudnn_fe.grouped.unfused.portable as unfused_portable
import cudnn_fe.grouped.unfused.sm90 as unfused_sm90
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.block_dequantize import DequantizeTiles
from cudnn_fe.core.cute.block_tiles import THREADS, LanePlace, Matrix, ScalePlace, lane_place, tile_walk
from cudnn_fe.core.cute.expert_rows import row_range
from cudnn_fe.core.cute.matrix_part import load_address
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import has_fp8
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.scaled.product_spec import SIDE, CodesSpec, ProductSpec

__all__ = ["ScaledProduct", "fake_codes", "fake_product_scratch", "last_end"]

_ROWS = (2, 0, 1)  # batch, row and column dim of (M, K), which has no batch


@cute.jit
def last_end(offsets: cute.Tensor, rows: Int32) -> Int32:
    """Where the last expert's rows end."""
    begin, count = row_range(offsets, rows, Int32(offsets.shape[0]) - 1)
    return begin + count


def _native(spec: ProductSpec) -> bool:
    return has_fp8(spec.rows.gemm.arch)


class _Rows(DequantizeTiles):
    """Rows up to the last end; what lies behind is neither read nor written."""

    def __init__(self, spec: ProductSpec) -> None:
        place = ScalePlace(columns=False, block=spec.block, packed=True)
        super().__init__(spec.element, place, spec.scale, spec.a.access, SIDE, _ROWS, _ROWS, _native(spec))

    @cute.jit
    def launch_rows(
        self, stream: cuda.CUstream, codes: cute.Tensor, scales: cute.Tensor, offsets: cute.Tensor, out: cute.Tensor
    ) -> None:
        blocks, walk = tile_walk(out.shape[0], out.shape[1], 1)
        kernel = self.rows_kernel(codes, scales, offsets, out, walk)
        kernel.launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def rows_kernel(
        self, codes: cute.Tensor, scales: cute.Tensor, offsets: cute.Tensor, out: cute.Tensor, walk: Any
    ) -> None:
        at = lane_place(walk)
        source, target = self.source(codes), Matrix.of(out, self.out_dims)
        end = last_end(offsets, source.rows)
        if at.row < end:
            inside = replace(source, rows=end)
            self.tile(at, inside, scales.iterator.toint(), None, replace(target, rows=end), out.element_type)


class _Weights(DequantizeTiles):
    """The weights of experts that have rows, in one tensor or at addresses."""

    def __init__(self, spec: ProductSpec) -> None:
        along_k = spec.b.major == "k"
        dims = (0, 1, 2) if along_k else (0, 2, 1)
        place = ScalePlace(columns=not along_k, block=spec.block, packed=True)
        super().__init__(spec.element, place, spec.scale, spec.b.access, SIDE, dims, dims, _native(spec))
        self.addressed = spec.b.rank == 1

    @cute.jit
    def launch_weights(
        self,
        stream: cuda.CUstream,
        codes: cute.Tensor,
        scales: cute.Tensor,
        offsets: cute.Tensor,
        extents: Any,
        out: cute.Tensor,
    ) -> None:
        """``extents`` are M, N and K."""
        batch, row, column = self.out_dims
        blocks, walk = tile_walk(out.shape[row], out.shape[column], out.shape[batch])
        kernel = self.weights_kernel(codes, scales, offsets, extents, out, walk)
        kernel.launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def weights_kernel(
        self, codes: cute.Tensor, scales: cute.Tensor, offsets: cute.Tensor, extents: Any, out: cute.Tensor, walk: Any
    ) -> None:
        at = lane_place(walk)
        m, n, k = extents
        _, count = row_range(offsets, m, at.batch)
        target = Matrix.of(out, self.out_dims)
        if count > 0:
            if cutlass.const_expr(self.addressed):
                rows, columns = (k, n) if self.place.columns else (n, k)
                row_bytes = Int64(columns) // 2 if self.fp4 else Int64(columns)
                source = Matrix(load_address(codes, at.batch), Int64(0), row_bytes, rows, columns)
                first = LanePlace(Int32(0), at.row, at.column)
                self.tile(first, source, load_address(scales, at.batch), None, target.one(at.batch), out.element_type)
            else:
                self.tile(at, self.source(codes), scales.iterator.toint(), None, target, out.element_type)


@cute.kernel
def _store_end(end: cute.Tensor, rows: Int32) -> None:
    store_global(end.iterator.toint(), [rows], 4, Int32(1))


class ScaledProduct:
    """The launches of one product.

    Args:
        spec: What to compile for.
    """

    def __init__(self, spec: ProductSpec) -> None:
        self.spec = spec
        self.rows, self.weights = _Rows(spec), _Weights(spec)
        unfused = unfused_sm90 if spec.backend == "sm90" else unfused_portable
        self.multiply = unfused.launcher(spec.rows)
        self.scratch = 4 if spec.single_group else 3

    @cute.jit
    def launch(
        self,
        stream: cuda.CUstream,
        a: cute.Tensor,
        b: cute.Tensor,
        sfa: cute.Tensor,
        sfb: cute.Tensor,
        offsets: cute.Tensor,
        extents: Any,
        scratch: Any,
    ) -> Any:
        """Launch on ``stream``.

        Args:
            stream: The stream.
            a: (M, K) codes.
            b: (L, N, K) codes, or addresses.
            sfa: Packed scales of A.
            sfb: Packed scales of the weights, or addresses.
            offsets: (L,) ends.
            extents: M, N, K in elements.
            scratch: The tensors of `product_scratch`.

        Returns:
            The product (M, at least N) float32, of rows up to the last end, and the ends.
        """
        wide_a, wide_b, product, *own = scratch
        ends = offsets
        if cutlass.const_expr(self.spec.single_group):
            ends = own[0]
            _store_end(ends, extents[0]).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)
        self.rows.launch_rows(stream, a, sfa, ends, wide_a)
        self.weights.launch_weights(stream, b, sfb, ends, extents, wide_b)
        self.multiply(stream, wide_a, wide_b, ends, product, product)
        return product, ends


def fake_codes(spec: CodesSpec) -> tuple[Any, Any]:
    """Stand-ins for codes and scales, or for the addresses of both."""
    if spec.rank == 1:
        return fake_tensor(spec.dtype, -1, rank=1, alignment=8), fake_tensor(spec.scales_dtype, -1, rank=1, alignment=8)
    alignment = min(max(spec.access * dtype(spec.dtype).bits // 8, 1), 16)
    return (
        fake_tensor(spec.dtype, -1, rank=spec.rank, alignment=alignment),
        fake_tensor(spec.scales_dtype, -1, rank=1, alignment=1),
    )


def fake_product_scratch(spec: ProductSpec) -> tuple[Any, ...]:
    """Stand-ins for `product_scratch`."""
    return (
        fake_tensor("bfloat16", 1, rank=2),
        fake_tensor("bfloat16", 2 if spec.b.major == "k" else 1),
        fake_tensor("float32", 1, rank=2),
        *((fake_tensor("int32", 0, rank=1),) if spec.single_group else ()),
    )
