"""Each row times its expert's weights plus bias, then a gated activation, on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.activations import geglu, swiglu
from cudnn_fe.core.cute.loaders_plain import THREADS, TILE_ROWS
from cudnn_fe.core.cute.store_plain import StagedTile, store_tile
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.portable_parts import Factors, PortableRows, fake_rows, fake_typed, output_part, store_zeros

__all__ = ["fake_arguments", "launcher"]

_PAIR = 32  # columns of gates, followed by as many of what they gate
_HALF = TILE_ROWS // 2


class _GroupedGlu(PortableRows):
    @cute.jit
    def launch(
        self,
        stream: cuda.CUstream,
        a: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        prob: cute.Tensor,
        bias: Any,
        d: cute.Tensor,
        c: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        grid = (self.row_tiles(offsets, (d.shape[0], 2 * Int32(d.shape[1]))).total(), 1, 1)
        kernel = self.kernel(a, b, offsets, alpha, prob, bias, d, c, Float32(linear_offset))
        kernel.launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        prob: cute.Tensor,
        bias: Any,
        d: cute.Tensor,
        c: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        columns = 2 * Int32(d.shape[1])
        tile, rows = self.place(offsets, (d.shape[0], columns))
        keeps = "c" in self.spec.wanted
        if rows.rows > 0:
            if rows.expert < offsets.shape[0]:
                staged, factors = self.staged_rows(a, b, alpha[rows.expert], prob, bias, columns, tile, rows)
                if cutlass.const_expr(keeps):
                    part = output_part(c, rows, tile)
                    store_tile(staged, c.element_type, part, elements=_shifted(factors))
                part = output_part(d, rows, tile, _HALF)
                gated = _gated(self.spec.activation, factors, linear_offset)
                store_tile(staged, d.element_type, part, _HALF, gated)
            elif cutlass.const_expr(self.spec.zero_tail):
                store_zeros(d, rows, tile, _HALF)
                if cutlass.const_expr(keeps):
                    store_zeros(c, rows, tile)


def _shifted(factors: Factors) -> Any:
    """Elements of C: sums plus bias."""

    def elements(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
        return [x + y for x, y in zip(staged.read(line, inner, count), factors.bias(inner, count), strict=True)]

    return elements


def _gated(activation: str, factors: Factors, linear_offset: Float32) -> Any:
    """Elements of D from the gates and ups of a staged tile."""
    shifted = _shifted(factors)

    def elements(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
        column = inner + inner // _PAIR * _PAIR
        gates, ups = shifted(staged, line, column, count), shifted(staged, line, column + _PAIR, count)
        prob = factors.prob(line)
        if activation == "swiglu":
            return [swiglu(up, gate) * prob for gate, up in zip(gates, ups, strict=True)]
        return [geglu(up, gate, linear_offset) * prob for gate, up in zip(gates, ups, strict=True)]

    return elements


class _Plain(_GroupedGlu):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        a: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        prob: cute.Tensor,
        d: cute.Tensor,
        c: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        self.launch(stream, a, b, offsets, alpha, prob, None, d, c, linear_offset)


class _Biased(_GroupedGlu):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        a: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        prob: cute.Tensor,
        bias: cute.Tensor,
        d: cute.Tensor,
        c: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        self.launch(stream, a, b, offsets, alpha, prob, bias, d, c, linear_offset)


def launcher(spec: RowsSpec) -> Any:
    """The host function ``launch(stream, a, b, offsets, alpha, prob[, bias], d, c, linear_offset)`` of a spec.

    Args:
        spec: What to compile for.
    """
    return _Plain(spec) if spec.bias_dtype is None else _Biased(spec)


def fake_arguments(spec: RowsSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""
    bias = [fake_typed(spec.bias_dtype, 2)] if spec.bias_dtype is not None else []
    outputs = [fake_typed(name, 2) for name in spec.gemm.out_dtypes]
    return (*fake_rows(spec), fake_typed("float32", 1), *bias, *outputs, Float32(0.0))
