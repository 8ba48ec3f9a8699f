"""The block-scaled grouped GEMMs that go backward: a product in float32, then an activation's derivative.

Gradients, largest magnitudes and block quantisation of one tile stay in registers, and so do its parts of the sums
along rows (dprob) and along an expert's rows (dbias), which a last launch adds in a fixed order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.activations import geglu_gradient, rectified, situglu_gradient, swiglu_gradient, tanh
from cudnn_fe.core.cute.amax import clear_amax
from cudnn_fe.core.cute.arguments import fake_tensor, named
from cudnn_fe.core.cute.block_tiles import SIDE, THREADS, LanePlace, Matrix, lane_place, tile_walk
from cudnn_fe.core.cute.exact import add, multiply, subtract
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import as_bits
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.dglu.portable_sums import add_column_parts, add_row_parts
from cudnn_fe.grouped.launch_sm90 import tensors_and_scalars
from cudnn_fe.grouped.scaled.backward_spec import PART_COLUMNS, PART_ROWS, BackwardSpec
from cudnn_fe.grouped.scaled.portable_product import ScaledProduct, fake_codes, fake_product_scratch
from cudnn_fe.grouped.scaled.portable_results import MATRIX, TileResults, kept, scale_walk
from cudnn_fe.grouped.scaled.portable_tile_rows import TileRows, load_rows

__all__ = ["fake_arguments", "launcher"]

_PAIR = 32  # columns of gates, followed by as many of ups
_ROW_LANES, _COLUMN_LANES = (1, 2, 4), (8, 16)  # lane bits that a tile's row, and its column, spans


class _Backward:
    def __init__(self, spec: BackwardSpec) -> None:
        self.spec = spec
        self.product = ScaledProduct(spec.product)

    def operands(self) -> list[tuple[str, bool]]:
        """Names of the operands in the op's order, and which are there."""
        spec = self.spec
        optional = {"beta": spec.beta, "prob": spec.prob_dtype is not None, "norm": spec.norm}
        return [*((name, True) for name in ("a", "c", "b", "sfa", "sfb", "offsets", "alpha")), *optional.items()]

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *arguments: Any, **scalars: Any) -> None:
        spec = self.spec
        tensors, numbers = arguments, ()
        if cutlass.const_expr(spec.numbers > 0):
            tensors, numbers = tensors_and_scalars(arguments, scalars, spec.numbers)
        given = named(self.operands(), tensors)
        count = sum([present for _, present in self.operands()])
        outputs = tensors[count : count + len(spec.out_dtypes)]
        *scratch, row_parts, column_parts = tensors[count + len(spec.out_dtypes) :]
        m, n = Int32(given.a.shape[0]), Int32(given.c.shape[1]) // (2 if spec.gated else 1)
        k = Int32(given.a.shape[1]) * (2 if spec.product.element == "float4_e2m1fn" else 1)
        product, ends = self.product.launch(
            stream, given.a, given.b, given.sfa, given.sfb, given.offsets, (m, n, k), scratch
        )
        if cutlass.const_expr(spec.result.keep_amax):
            clear_amax(stream, outputs[5], float("-inf"))
        blocks, walk = scale_walk(m, n, 1) if cutlass.const_expr(len(spec.result.recipes) > 0) else tile_walk(m, n, 1)
        factors, parts = (given.alpha, given.beta, given.prob, given.norm), (row_parts, column_parts)
        kernel = self.kernel(
            product, ends, (m, n), given.c, factors, tuple(outputs), parts, tuple(map(Float32, numbers)), walk
        )
        kernel.launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)
        add_row_parts(stream, row_parts, ends, outputs[3], True)
        if cutlass.const_expr(spec.dbias):
            add_column_parts(stream, column_parts, ends, m, outputs[4], PART_ROWS, True)

    @cute.kernel
    def kernel(
        self,
        product: cute.Tensor,
        offsets: cute.Tensor,
        extents: Any,
        c: cute.Tensor,
        factors: Any,
        outputs: Any,
        parts: Any,
        numbers: Any,
        walk: Any,
    ) -> None:
        """One tile of a warp."""
        spec = self.spec
        alpha, beta, prob, norm = factors
        at = lane_place(walk)
        matrix = replace(Matrix.of(product, MATRIX), rows=extents[0], columns=extents[1])
        rows = TileRows.of(offsets, at, matrix.rows)
        inside = rows.of_lane(rows.inside, at, SIDE)
        scale = rows.load(alpha, rows.expert)
        if cutlass.const_expr(spec.gated):
            scale = multiply(scale, scale)
        gates = betas = None
        if cutlass.const_expr(prob is not None):
            gates = rows.of_lane(rows.load(prob, rows.row), at, SIDE)
        if cutlass.const_expr(beta is not None and spec.epilogue in ("swiglu", "situglu")):
            betas = rows.of_lane(rows.load(beta, rows.expert), at, SIDE)
        sums = kept(load_rows(product, matrix, at, SIDE), inside, matrix.columns - at.column)
        r = _scaled(sums, rows.of_lane(scale, at, SIDE))
        wide = Matrix.of(c, MATRIX)
        results = TileResults(spec.result, offsets, rows, replace(matrix, columns=wide.columns), norm)
        if cutlass.const_expr(spec.gated):
            found, shares = self.gated(r, c, wide, at, inside, gates, betas, numbers)
            for half in cutlass.range_constexpr(2):
                values, place = found[half]
                self.store(results, values, place, outputs, half)
                self.store_column_parts(parts[1], values, place, results)
        else:
            values, again, shares = self.squared(r, kept(load_rows(c, wide, at, spec.c_access), inside, SIDE), gates)
            values, again = (kept(x, inside, wide.columns - at.column) for x in (values, again))
            self.store(results, values, at, outputs, 0)
            self.store_again(results, again, at, outputs)
            self.store_column_parts(parts[1], values, at, results)
        self.store_row_parts(parts[0], shares, at, matrix)

    def gated(
        self, r: Any, c: Any, wide: Matrix, at: LanePlace, inside: Any, gates: Any, betas: Any, numbers: Any
    ) -> tuple[list[tuple[Any, LanePlace]], list[Float32]]:
        """D of the gates' and of the ups' columns, each with its place, and the rows' shares of dprob."""
        vector = cute.arch.thread_idx()[0] % 8
        first = (at.column - vector * SIDE) * 2 + vector // 4 * (2 * _PAIR) + vector % 4 * SIDE
        places = [LanePlace(at.batch, at.row, first + side * _PAIR) for side in range(2)]
        before = [kept(load_rows(c, wide, place, self.spec.c_access), inside, SIDE) for place in places]
        if betas is not None:
            before = [_scaled(side, betas) for side in before]
        of_gates, of_ups, shares = [], [], []
        for j in range(SIDE):
            of_gate, of_up, share = [], [], Float32(0.0)
            for product, gate, up in zip(r[j], before[0][j], before[1][j], strict=True):
                to_up, to_gate, value = self.derivative(up, gate, numbers)
                share = add(share, multiply(product, value))
                weighted = product if gates is None else multiply(product, gates[j])
                of_gate.append(multiply(weighted, to_gate))
                of_up.append(multiply(weighted, to_up))
            of_gates.append(of_gate)
            of_ups.append(of_up)
            shares.append(share)
        sides = zip((of_gates, of_ups), places, strict=True)
        return [(kept(side, inside, wide.columns - place.column), place) for side, place in sides], shares

    def derivative(self, up: Float32, gate: Float32, numbers: Any) -> tuple[Float32, Float32, Float32]:
        """``(d/dup, d/dgate, activation)``."""
        offset, alpha, high, low, beta1, beta2 = numbers
        if self.spec.epilogue == "swiglu":
            return swiglu_gradient(up, gate)
        if self.spec.epilogue == "geglu":
            return geglu_gradient(up, gate, offset, alpha, high, low)
        return situglu_gradient(up, gate, beta1, beta2)

    def squared(self, r: Any, c: Any, gates: Any) -> tuple[Any, Any, list[Float32]]:
        """D, the squared ReLU again, and the rows' shares of dprob."""
        clamp = self.spec.clamp
        found, again, shares = [], [], []
        for j, (products, kept_before) in enumerate(zip(r, c, strict=True)):
            by = Float32(1.0) if gates is None else gates[j]
            if clamp is None:
                parts = [rectified(value) for value in kept_before]
                slopes, twice = parts, multiply(by, 2.0)
                found.append([multiply(multiply(part, x), twice) for part, x in zip(parts, products, strict=True)])
            else:
                parts = [rectified(tanh(multiply(value, 1.0 / clamp))) for value in kept_before]
                slopes = [subtract(part, multiply(multiply(part, part), part)) for part in parts]
                twice, by = multiply(by, 2.0 * clamp), multiply(by, clamp * clamp)
                found.append([multiply(multiply(x, twice), slope) for x, slope in zip(products, slopes, strict=True)])
            squares = [multiply(part, part) for part in parts]
            again.append([multiply(square, by) for square in squares])
            share = Float32(0.0)
            for square, x in zip(squares, products, strict=True):
                share = add(share, multiply(square, x))
            shares.append(share if clamp is None else multiply(share, clamp * clamp))
        return found, again, shares

    def store(self, results: TileResults, values: Any, place: LanePlace, outputs: Any, half: int) -> None:
        """D by rows and by columns, their scales, and amax (L, 1), or (L, 2, 1) of gates' and ups' columns."""
        spec = self.spec
        d, d_col, _, _, _, amax, by_rows, by_columns, _ = outputs
        if spec.result.keep_amax:
            sides = 2 if spec.gated else 1
            results.rows.fold_amax(amax.iterator.toint() + half * 4, sides * 4, values, place)
        if not spec.result.recipes:
            results.store(d, values, place, spec.access)
            return
        for tensor, packed, columns in ((d, by_rows, False), (d_col, by_columns, True)):
            results.quantised(tensor, packed, values, place, spec.access, columns)

    def store_again(self, results: TileResults, values: Any, at: LanePlace, outputs: Any) -> None:
        """The activation, by columns where it has scales."""
        if self.spec.result.recipes:
            results.quantised(outputs[2], outputs[8], values, at, self.spec.access, True)
        else:
            results.store(outputs[2], values, at, self.spec.access)

    def store_row_parts(self, parts: Any, shares: list[Float32], at: LanePlace, matrix: Matrix) -> None:
        """A tile's part of dprob: a row's eight lanes, of which the j-th stores row j."""
        vector = cute.arch.thread_idx()[0] % 8
        tile = Matrix.of(parts, MATRIX).place(0, (at.column - vector * SIDE) // PART_COLUMNS, at.row * 4)
        there = Int32(at.column - vector * SIDE < matrix.columns)
        for j, share in enumerate(shares):
            total = share
            for mask in _ROW_LANES:
                total = add(total, cute.arch.shuffle_sync_bfly(total, mask))
            inside = there & Int32(vector == j) & Int32(at.row + j < matrix.rows)
            store_global(tile + j * 4, [as_bits(total)], 4, inside)

    def store_column_parts(self, parts: Any, values: Any, place: LanePlace, results: TileResults) -> None:
        """A tile's parts of dbias, one for each expert from its first row's to its last one's."""
        if not self.spec.dbias:
            return
        rows = results.rows
        last = Int32(results.offsets.shape[0]) - 1
        begin, end = (cutlass.min(cute.arch.shuffle_sync(rows.expert, lane), last) for lane in (0, 31))
        end = cutlass.select_(rows.first < results.matrix.rows, end, begin - 1)  # no part is below the buffer
        owners = rows.of_lane(rows.expert, place, SIDE)
        _store_expert_parts(parts, values, place, owners, begin, end, rows.first, results.matrix.columns)


@cute.jit
def _store_expert_parts(
    parts: cute.Tensor,
    values: cutlass.Constexpr,
    place: cutlass.Constexpr,
    owners: cutlass.Constexpr,
    first: Int32,
    last: Int32,
    row: Int32,
    columns: Int32,
) -> None:
    for expert in cutlass.range(first, last + 1):
        totals = _column_sums(values, [Int32(owner == expert) for owner in owners])
        tile = Matrix.of(parts, MATRIX).place(0, row // PART_ROWS + expert, place.column * 4)
        lane = cute.arch.thread_idx()[0] % 32
        for k in cutlass.range_constexpr(SIDE):
            inside = Int32(lane < 8) & Int32(place.column + k < columns)
            store_global(tile + k * 4, [as_bits(totals[k])], 4, inside)


def _column_sums(values: Any, chosen: list[Int32]) -> list[Float32]:
    """Sums of eight columns over the chosen of a tile's rows, in every lane."""
    totals = [Float32(0.0)] * SIDE
    for row, own in zip(values, chosen, strict=True):
        totals = [
            add(total, cutlass.select_(own != 0, value, Float32(0.0))) for total, value in zip(totals, row, strict=True)
        ]
    for mask in _COLUMN_LANES:
        totals = [add(total, cute.arch.shuffle_sync_bfly(total, mask)) for total in totals]
    return totals


def _scaled(values: list[list[Any]], factors: list[Any]) -> list[list[Any]]:
    return [[multiply(value, by) for value in row] for row, by in zip(values, factors, strict=True)]


def launcher(spec: BackwardSpec) -> Any:
    """The host function ``launch(stream, *operands, *outputs, *scratch, *numbers)`` of a spec, to be compiled.

    Args:
        spec: What to compile for.
    """
    return _Backward(spec)


def fake_arguments(spec: BackwardSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order."""
    (a, sfa), (b, sfb) = fake_codes(spec.product.a), fake_codes(spec.product.b)
    c = fake_tensor(spec.c_dtype, -1, rank=2, alignment=min(spec.c_access * dtype(spec.c_dtype).itemsize, 16))
    given = [a, c, b, sfa, sfb, _vector("int32"), _vector("float32")]
    given += [_vector("float32")] if spec.beta else []
    given += [_vector(spec.prob_dtype)] if spec.prob_dtype else []
    given += [fake_tensor("float32", -1, rank=1, alignment=4)] if spec.norm else []
    outputs = [fake_tensor(kind, -1, rank=rank) for kind, rank in zip(spec.out_dtypes, spec.out_ranks, strict=True)]
    parts = [fake_tensor("float32", 1, rank=2) for _ in range(2)]
    numbers = (Float32(0.0) for _ in range(spec.numbers))
    return (*given, *outputs, *fake_product_scratch(spec.product), *parts, *numbers)


def _vector(kind: str) -> Any:
    return fake_tensor(kind, -1, rank=1, alignment=dtype(kind).itemsize)
