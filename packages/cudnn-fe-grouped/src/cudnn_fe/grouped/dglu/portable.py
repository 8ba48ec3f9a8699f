"""The gradient of gate and up columns from that of the next layer's results, on any GPU from SM80 up.

Sums along a row (dprob) and along an expert's rows (dbias) are made of one part for each tile, which a second kernel
adds in the order of the tiles: no atomics, equal bits in every run.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from cudnn_fe.core.cute.activations import geglu_gradient, swiglu_gradient
from cudnn_fe.core.cute.loaders_plain import THREADS, TILE_ROWS
from cudnn_fe.core.cute.matrix_part import MatrixPart
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.store_plain import StagedTile
from cudnn_fe.core.cute.vectors import load_words, store_vector, widen
from cudnn_fe.grouped.dglu.portable_sums import add_column_parts, add_row_parts
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.portable_parts import Factors, PortableRows, fake_rows, fake_typed, output_part, store_zeros

__all__ = ["fake_arguments", "launcher"]

_PAIR = 32  # columns of gates, followed by as many of what they gate
_VECTOR = 8
_WIDE = 2 * TILE_ROWS


class _GroupedDglu(PortableRows):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        a: cute.Tensor,
        c: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        beta: cute.Tensor,
        prob: cute.Tensor,
        d: cute.Tensor,
        dprob: cute.Tensor,
        dbias: cute.Tensor,
        again: cute.Tensor,
        row_parts: cute.Tensor,
        column_parts: cute.Tensor,
        linear_offset: Float32,
        geglu_alpha: Float32,
        glu_clamp_max: Float32,
        glu_clamp_min: Float32,
    ) -> None:
        numbers = [Float32(x) for x in (linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min)]
        grid = (self.row_tiles(offsets, (d.shape[0], Int32(d.shape[1]) // 2)).total(), 1, 1)
        block = (THREADS, 1, 1)
        kernel = self.kernel(a, c, b, offsets, alpha, beta, prob, d, again, row_parts, column_parts, numbers)
        kernel.launch(grid=grid, block=block, stream=stream)
        add_row_parts(stream, row_parts, offsets, dprob, self.spec.zero_tail)
        if cutlass.const_expr("dbias" in self.spec.wanted):
            add_column_parts(stream, column_parts, offsets, Int32(a.shape[0]), dbias, TILE_ROWS)

    @cute.kernel
    def kernel(
        self,
        a: cute.Tensor,
        c: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        beta: cute.Tensor,
        prob: cute.Tensor,
        d: cute.Tensor,
        again: cute.Tensor,
        row_parts: cute.Tensor,
        column_parts: cute.Tensor,
        numbers: Any,
    ) -> None:
        columns = Int32(d.shape[1]) // 2
        tile, rows = self.place(offsets, (d.shape[0], columns))
        if rows.rows > 0:
            if rows.expert < offsets.shape[0]:
                scale = alpha[rows.expert]
                staged, factors = self.staged_rows(a, b, scale * scale, prob, None, columns, tile, rows)
                wide = [output_part(tensor, rows, tile, _WIDE) for tensor in (c, d)]
                parts: list[Any] = [*wide, output_part(again, rows, tile) if "activation" in self.spec.wanted else None]
                sums = [
                    MatrixPart.of(row_parts).from_column(rows.first).from_row(tile.n),
                    MatrixPart.of(column_parts).from_row(tile.m).from_column(tile.n * _WIDE),
                ]
                misaligned = Int64(0)
                for part in parts:
                    if cutlass.const_expr(part is not None):
                        misaligned |= part.address | part.row_stride
                scalars = [beta[rows.expert], *numbers]
                if (misaligned & 15) == 0:
                    _gradients(self.spec, staged, factors, parts, sums, scalars, _VECTOR)
                else:
                    _gradients(self.spec, staged, factors, parts, sums, scalars, 1)
            elif cutlass.const_expr(self.spec.zero_tail):
                store_zeros(d, rows, tile, _WIDE)
                if cutlass.const_expr("activation" in self.spec.wanted):
                    store_zeros(again, rows, tile)


@cute.jit
def _gradients(
    spec: cutlass.Constexpr,
    staged: cutlass.Constexpr,
    factors: cutlass.Constexpr,
    parts: cutlass.Constexpr,
    sums: cutlass.Constexpr,
    scalars: cutlass.Constexpr,
    count: cutlass.Constexpr,
) -> None:
    """Store the gradients of a staged tile's gates and ups, and the tile's parts of the sums.

    Args:
        spec: The kernel's `RowsSpec`.
        staged: The `StagedTile` of the gradient of the activation.
        factors: Its prob.
        parts: C, D and the activation's buffer or None, as `MatrixPart`s.
        sums: The tile's row of dprob's parts, and of dbias's.
        scalars: beta and the activation's numbers.
        count: Columns that a thread handles at a time.
    """
    source, target, again = parts
    per_line = TILE_ROWS // count
    thread = Int32(cute.arch.thread_idx()[0])
    inner, first_line = thread % per_line * count, thread // per_line
    step = THREADS // per_line
    column = inner + inner // _PAIR * _PAIR
    d_type = element_type(spec.gemm.out_dtypes[0])
    totals = cute.make_rmem_tensor(2 * count, Float32)
    totals.fill(0.0)
    for turn in cutlass.range(TILE_ROWS // step):
        line = first_line + turn * step
        inside = Int32(line < target.rows) & Int32(column < target.columns)
        of_gates, of_ups, values, share = _computed(spec, staged, factors, source, scalars, line, inner, count, inside)
        # Nobody else reads these elements of the tile; they hold the row's parts from here on.
        store_shared(_place(staged, line, inner), [share], 4)
        if inside != 0:
            for half, results in enumerate((of_gates, of_ups)):
                place = target.address + Int64(line) * target.row_stride
                place += Int64(column + half * _PAIR) * (d_type.width // 8)
                store_vector(d_type, place, results)
                for index in cutlass.range_constexpr(count):
                    totals[half * count + index] += results[index]
            if cutlass.const_expr(again is not None):
                place = again.address + Int64(line) * again.row_stride + Int64(inner) * 2
                store_vector(BFloat16, place, values)
    cute.arch.sync_threads()
    total = Float32(0.0)
    for index in cutlass.range_constexpr(per_line):
        total += load_shared(_place(staged, thread, index * count), 1, Float32)[0]
    if thread < target.rows:
        store_vector(Float32, sums[0].address + Int64(thread) * 4, [total])
    if cutlass.const_expr("dbias" in spec.wanted):
        _column_sums(staged, totals, sums[1], target.columns, count)


def _computed(
    spec: RowsSpec,
    staged: StagedTile,
    factors: Factors,
    source: MatrixPart,
    scalars: Any,
    line: Any,
    inner: Any,
    count: int,
    inside: Any,
) -> Any:
    """Gradients of ``count`` gates and of their ups, the activation times prob, and the columns' part of dprob."""
    assert spec.c_dtype is not None
    kind = element_type(spec.c_dtype)
    column = inner + inner // _PAIR * _PAIR
    address = source.address + Int64(line) * source.row_stride + Int64(column) * (kind.width // 8)
    pair = [load_words(kind, address + half * _PAIR * (kind.width // 8), count, inside) for half in range(2)]
    gates, ups = (widen(kind, words, count) for words in pair)
    of_gates, of_ups, values = [], [], []
    prob, share = factors.prob(line), Float32(0.0)
    for r, gate, up in zip(staged.read(line, inner, count), gates, ups, strict=True):
        product = r.to(element_type(spec.gemm.a_dtype)).to(Float32) if spec.round_product else r
        to_up, to_gate, value = _derivative(spec.activation, up, gate, scalars)
        of_gates.append(product * prob * to_gate)
        of_ups.append(product * prob * to_up)
        values.append(value * prob)
        share += product * value
    return of_gates, of_ups, values, share


def _place(staged: StagedTile, line: Any, inner: Any) -> Int32:
    return staged.shared + line * staged.pitch("n") + inner * 4


def _derivative(activation: str, up: Float32, gate: Float32, scalars: Any) -> Any:
    """``(d/dup, d/dgate, value)`` at ``beta`` times gate and up."""
    beta, *numbers = scalars
    if activation == "swiglu":
        return swiglu_gradient(up * beta, gate * beta)
    return geglu_gradient(up * beta, gate * beta, *numbers)


@cute.jit
def _column_sums(
    staged: cutlass.Constexpr, totals: cute.Tensor, part: cutlass.Constexpr, left: Int32, count: cutlass.Constexpr
) -> None:
    """Add the threads' sums of each column in the order of their lines, and store them."""
    cute.arch.sync_threads()
    thread = Int32(cute.arch.thread_idx()[0])
    per_line = TILE_ROWS // count
    inner, group = thread % per_line * count, thread // per_line
    column = inner + inner // _PAIR * _PAIR
    for half in cutlass.range_constexpr(2):
        for index in cutlass.range_constexpr(count):
            place = staged.shared + (group * _WIDE + column + half * _PAIR + index) * 4
            store_shared(place, [totals[half * count + index]], 4)
    cute.arch.sync_threads()
    for half in cutlass.range_constexpr(2):
        column = thread + half * TILE_ROWS
        total = Float32(0.0)
        for index in cutlass.range_constexpr(THREADS // per_line):
            total += load_shared(staged.shared + (index * _WIDE + column) * 4, 1, Float32)[0]
        if column < left:
            store_vector(Float32, part.address + Int64(column) * 4, [total])


def launcher(spec: RowsSpec) -> Any:
    """The host function ``launch(stream, a, c, b, offsets, alpha, beta, prob, d, dprob, dbias, again, row_parts,
    column_parts, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min)`` of a spec, to be compiled.

    Args:
        spec: What to compile for.
    """
    return _GroupedDglu(spec)


def fake_arguments(spec: RowsSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""
    assert spec.c_dtype is not None
    a, b, offsets, alpha = fake_rows(spec)
    ranks = (2, 1, 3, 2)
    outputs = [fake_typed(name, rank) for name, rank in zip(spec.gemm.out_dtypes, ranks, strict=True)]
    vectors = [fake_typed("float32", 1) for _ in range(2)]
    scratch = [fake_typed("float32", 2) for _ in range(2)]
    numbers = [Float32(0.0)] * 4
    return (a, fake_typed(spec.c_dtype, 2), b, offsets, alpha, *vectors, *outputs, *scratch, *numbers)
