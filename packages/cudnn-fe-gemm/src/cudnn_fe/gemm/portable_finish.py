"""From a float32 product in memory to an op's results, in tiles of 32 rows and 64 columns of a warp.

Activation, derivative, rotation, largest magnitude and block quantisation of one tile stay in registers. The product is
read once; that it lies in memory at all is what fused epilogues would save.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.activations import rectified, swiglu
from cudnn_fe.core.cute.amax import clear_amax, fold_amax
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.block_quantize import BlockQuantizer, quantize_tile
from cudnn_fe.core.cute.block_tiles import (
    SIDE,
    THREADS,
    LanePlace,
    Matrix,
    ScalePlace,
    lane_place,
    load_vector,
    store_rows,
    tile_walk,
)
from cudnn_fe.core.cute.exact import add, multiply, subtract
from cudnn_fe.core.cute.narrow import narrow_words
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import as_bits, as_float, has_fp8
from cudnn_fe.core.cute.vectors import widen
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.gemm.scaled_spec import FinishSpec

__all__ = ["Finish"]

_ROWS = (2, 0, 1)  # batch, row and column dim of (M, N, L)
_TILE = 64
_HEAD, _ROTATED = 192, 128
_THREADS = 128


class Finish:
    """The results of one op from its product.

    Args:
        spec: What to compile for.
    """

    def __init__(self, spec: FinishSpec) -> None:
        self.spec = spec
        self.native = has_fp8(spec.arch)

    @cute.jit
    def launch(
        self, stream: cuda.CUstream, product: cute.Tensor, extents: Any, inputs: Any, outputs: Any, partials: Any
    ) -> None:
        """Launch on ``stream``.

        Args:
            stream: The stream.
            product: (M, at least N, L) float32, contiguous along N.
            extents: M, N, L.
            inputs: The op's operands beyond those of the product, as the spec names them.
            outputs: The op's outputs.
            partials: (M, tiles, L) float32 for sums along rows, or None.
        """
        rows, columns, batches = extents
        kind = self.spec.kind
        amax = {"amax": 1, "swiglu": 3, "srelu": 2, "dsrelu": 2}.get(kind)
        if cutlass.const_expr(amax is not None):
            clear_amax(stream, outputs[amax])
        if cutlass.const_expr(self.spec.quantised is not None and kind != "proj_rope"):
            # Scales of rows and columns that do not exist are zeros in the atoms.
            width = 256 if kind == "swiglu" else 128
            rows, columns = (rows + 127) // 128 * 128, (columns + (width - 1)) // width * width
        blocks, walk = tile_walk(rows, columns, batches)
        self.kernel(product, extents, inputs, outputs, partials, walk).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream
        )
        if cutlass.const_expr(partials is not None):
            count = extents[0] * batches
            self.sum_rows(partials, outputs[1], extents).launch(
                grid=((count - 1) // _THREADS + 1, 1, 1), block=(_THREADS, 1, 1), stream=stream
            )

    @cute.kernel
    def kernel(self, product: cute.Tensor, extents: Any, inputs: Any, outputs: Any, partials: Any, walk: Any) -> None:
        """One tile of a warp."""
        at = lane_place(walk)
        memory = Matrix.of(product, _ROWS)
        matrix = Matrix(memory.address, memory.batch_bytes, memory.row_bytes, extents[0], extents[1])
        sums = []
        for j in cutlass.range_constexpr(SIDE):
            inside = Int32(at.row + j < matrix.rows)
            address = matrix.place(at.batch, at.row + j, at.column * 4)
            words = load_vector(address, 32, self.spec.access, matrix.columns - at.column, inside)
            sums.append([as_float(word) for word in words])
        getattr(self, self.spec.kind)(sums, matrix, at, inputs, outputs, partials)

    def operand(self, inputs: Any, name: str) -> Any:
        """An operand by its name, None where it is absent."""
        names = self.spec.inputs
        return inputs[names.index(name)] if name in names else None

    def factor(self, inputs: Any) -> Any:
        """The quantisation's factor, None where there is none."""
        norm = self.operand(inputs, "norm_const")
        return None if norm is None else as_float(load_global(norm.iterator.toint(), 4, Int32(1))[0])

    def row_factors(self, prob: Any, matrix: Matrix, at: LanePlace) -> list[Float32]:
        """Each row's factor."""
        row_bytes, batch_bytes = Int64(prob.stride[0]) * 4, Int64(prob.stride[2]) * 4
        base = prob.iterator.toint() + Int64(at.batch) * batch_bytes
        return [
            as_float(load_global(base + Int64(at.row + j) * row_bytes, 4, Int32(at.row + j < matrix.rows))[0])
            for j in range(SIDE)
        ]

    def amax(self, sums: Any, matrix: Matrix, at: Any, inputs: Any, outputs: Any, partials: Any) -> None:
        """C and its largest magnitude."""
        del inputs, partials
        self.store(outputs[0], self.spec.out_dtypes[0], sums, matrix, at, self.spec.result_access)
        fold_amax(outputs[1].iterator.toint(), _flat(sums))

    def swiglu(self, sums: Any, matrix: Matrix, at: Any, inputs: Any, outputs: Any, partials: Any) -> None:
        """AB12, and SwiGLU of the tile's 32 value and 32 gate columns, which lie four lanes apart."""
        del partials
        self.store(outputs[0], self.spec.out_dtypes[0], sums, matrix, at, self.spec.access)
        vector = cute.arch.thread_idx()[0] % 8
        has_value = vector < 4
        results = []
        for j in range(SIDE // 2):  # lanes with values finish the first four rows, those with gates the others
            row = []
            for first, last in zip(sums[j], sums[j + 4], strict=True):
                own = cutlass.select_(has_value, first, last)
                other = cute.arch.shuffle_sync_bfly(cutlass.select_(has_value, last, first), 4)
                row.append(swiglu(cutlass.select_(has_value, own, other), cutlass.select_(has_value, other, own)))
            results.append(row)
        half = Matrix(matrix.address, matrix.batch_bytes, matrix.row_bytes, matrix.rows, matrix.columns // 2)
        first_row = at.row + cutlass.select_(has_value, Int32(0), Int32(4))
        place = LanePlace(at.batch, first_row, (at.column - vector * SIDE) // 2 + vector % 4 * SIDE)
        self.result(results, half, place, inputs, outputs[1], outputs[2])
        fold_amax(outputs[3].iterator.toint(), _flat(results))

    def srelu(self, sums: Any, matrix: Matrix, at: Any, inputs: Any, outputs: Any, partials: Any) -> None:
        """C, and ``prob * relu(S)**2``."""
        del partials
        self.store(outputs[0], self.spec.out_dtypes[0], sums, matrix, at, self.spec.access)
        probs = self.row_factors(self.operand(inputs, "prob"), matrix, at)
        results = []
        for row, prob in zip(sums, probs, strict=True):
            positive = [rectified(value) for value in row]
            results.append([multiply(multiply(r, r), prob) for r in positive])
        self.result(results, matrix, at, inputs, outputs[1], outputs[3])
        fold_amax(outputs[2].iterator.toint(), _flat(results))

    def dsrelu(self, sums: Any, matrix: Matrix, at: Any, inputs: Any, outputs: Any, partials: Any) -> None:
        """``2 relu(S) * (C * prob)``, and the rows' sums of ``relu(S)**2 * C`` over the tile."""
        probs = self.row_factors(self.operand(inputs, "prob"), matrix, at)
        upstream = self.operand(inputs, "c")
        results = []
        totals = []
        for j, (row, prob) in enumerate(zip(sums, probs, strict=True)):
            gradients = self.load(upstream, matrix, at, j)
            positive = [rectified(value) for value in row]
            pairs = list(zip(positive, gradients, strict=True))
            results.append([multiply(add(r, r), multiply(g, prob)) for r, g in pairs])
            total = Float32(0.0)
            for r, g in pairs:
                total = add(total, multiply(multiply(r, r), g))
            for mask in (1, 2, 4):
                total = add(total, cute.arch.shuffle_sync_bfly(total, mask))
            totals.append(total)
        self.result(results, matrix, at, inputs, outputs[0], outputs[3])
        fold_amax(outputs[2].iterator.toint(), _flat(results))
        first = Int32(cute.arch.thread_idx()[0] % 8 == 0) & Int32(at.column < matrix.columns)
        sheet = Matrix.of(partials, _ROWS)
        for j, total in enumerate(totals):
            inside = first & Int32(at.row + j < matrix.rows)
            store_global(sheet.place(at.batch, at.row + j, at.column // _TILE * 4), [as_bits(total)], 4, inside)

    @cute.kernel
    def sum_rows(self, partials: cute.Tensor, out: cute.Tensor, extents: Any) -> None:
        """Add each row's partial sums in the order of the tiles."""
        rows, columns, batches = extents
        index = cute.arch.block_idx()[0] * _THREADS + cute.arch.thread_idx()[0]
        batch, row = index // rows, index % rows
        sheet = Matrix.of(partials, _ROWS)
        inside = Int32(batch < batches)
        total = Float32(0.0)
        for tile in cutlass.range((columns - 1) // _TILE + 1, unroll=4):
            total = add(total, as_float(load_global(sheet.place(batch, row, tile * 4), 4, inside)[0]))
        place = Int64(row) * Int64(out.stride[0]) + Int64(batch) * Int64(out.stride[2])
        store_global(out.iterator.toint() + place * 4, [as_bits(total)], 4, inside)

    def proj_rope(self, sums: Any, matrix: Matrix, at: Any, inputs: Any, outputs: Any, partials: Any) -> None:
        """Round, rotate every third tile, and quantise along features and along tokens."""
        del partials
        vector = cute.arch.thread_idx()[0] % 8
        rotated = (at.column - vector * SIDE) % _HEAD == _ROTATED
        values = []
        for j, row in enumerate(sums):
            rounded = widen_pairs(narrow_pairs(row))
            turned = self.turned(rounded, inputs, at, j, vector, Int32(rotated) & Int32(at.row + j < matrix.rows))
            values.append([cutlass.select_(rotated, new, old) for new, old in zip(turned, rounded, strict=True)])
        for number, columns in enumerate((False, True)):
            codes, scales = outputs[2 * number], outputs[2 * number + 1]
            quantizer = BlockQuantizer(
                "float8_e4m3fn", "float8_e8m0fnu", "power_of_two", self.spec.quotient, self.native
            )
            place = ScalePlace(columns, 32, packed=False)
            scaled = quantize_tile(quantizer, place, values, None, scales.iterator.toint(), matrix, at)
            target = Matrix(codes.iterator.toint(), Int64(0), Int64(matrix.columns), matrix.rows, matrix.columns)
            store_rows(target, "float8_e4m3fn", scaled, at, SIDE, self.native, 8)

    def turned(self, values: list[Any], inputs: Any, at: Any, j: int, vector: Any, wanted: Any) -> list[Any]:
        """A row's eight columns of the rotated tile, whose pairs its eight lanes hold side by side.

        A lane turns four pairs to four columns of the first half and four of the second; two lanes' fours make a
        lane's eight columns.
        """
        tables = []
        for name in ("cos", "sin"):
            table = self.operand(inputs, name)
            row = table.iterator.toint() + Int64(at.row + j) * (Int64(table.stride[0]) * 2)
            tables.append([self.four(row + Int64(vector) * 8 + half * 64, wanted) for half in range(2)])
        (cos, cos_too), (sin, sin_too) = tables
        first, second = [], []
        for i in range(4):
            p, q = values[2 * i], values[2 * i + 1]
            first.append(subtract(multiply(p, cos[i]), multiply(q, sin[i])))
            second.append(add(multiply(p, sin_too[i]), multiply(q, cos_too[i])))
        lane = cute.arch.thread_idx()[0] % 32
        base = lane - vector + vector % 4 * 2
        found = []
        for source in (base, base + 1):
            for one, two in zip(first, second, strict=True):
                low, high = cute.arch.shuffle_sync(one, source), cute.arch.shuffle_sync(two, source)
                found.append(cutlass.select_(vector < 4, low, high))
        return found

    def four(self, address: Int64, wanted: Any) -> list[Float32]:
        """Four bfloat16 values."""
        size = min(2 * self.spec.input_access, 8)
        parts = [load_global(address + start, size, wanted) for start in range(0, 8, size)]
        if size == 2:
            return [as_float(part[0] << 16) for part in parts]
        return widen_pairs([word for part in parts for word in part])

    def result(self, values: Any, matrix: Matrix, at: Any, inputs: Any, out: Any, scales: Any) -> None:
        """The last matrix: quantised along its rows, or rounded."""
        name = dtype(_kind_of(out)).name
        if self.spec.quantised is None:
            self.store(out, name, values, matrix, at, self.spec.result_access)
            return
        quantizer = BlockQuantizer(self.spec.quantised, "float8_e8m0fnu", "epilogue", self.spec.quotient, self.native)
        place = ScalePlace(columns=False, block=32, packed=True)
        scaled = quantize_tile(quantizer, place, values, self.factor(inputs), scales.iterator.toint(), matrix, at)
        self.store(out, name, scaled, matrix, at, self.spec.result_access if self.spec.out_major == "n" else 1)

    def load(self, tensor: Any, matrix: Matrix, at: Any, j: int) -> list[Float32]:
        """A lane's eight elements of row ``j`` of an operand of the product's extents."""
        bits = tensor.element_type.width
        inside, left = Int32(at.row + j < matrix.rows), matrix.columns - at.column
        if self.spec.out_major == "n":
            address = Matrix.of(tensor, _ROWS).place(at.batch, at.row + j, at.column * (bits // 8))
            words = load_vector(address, bits, self.spec.input_access, left, inside)
        else:
            single = []
            for k in range(SIDE):
                single += load_global(_element(tensor, at, j, k), bits // 8, inside & Int32(k < left))
            pairs = zip(single[::2], single[1::2], strict=True)
            words = single if bits == 32 else [low | (high << 16) for low, high in pairs]
        return widen(tensor.element_type, words, SIDE)

    def store(self, tensor: Any, name: str, values: Any, matrix: Matrix, at: Any, access: int) -> None:
        """Round a lane's rows and store them."""
        fp4 = name in ("float4_e2m1fn", "uint8")
        bits = 4 if fp4 else tensor.element_type.width
        if self.spec.out_major == "n":
            target = replace(Matrix.of(tensor, _ROWS), rows=matrix.rows, columns=matrix.columns)
            store_rows(target, name, values, at, access, self.native, bits)
            return
        left = matrix.columns - at.column
        for j, row in enumerate(values):
            words = narrow_words(name, row, self.native)
            inside = Int32(at.row + j < matrix.rows)
            for k in range(SIDE):
                place = k * bits
                word = (words[place // 32] >> (place % 32)) & ((1 << bits) - 1) if bits < 32 else words[k]
                store_global(_element(tensor, at, j, k), [word], bits // 8, inside & Int32(k < left))


def _element(tensor: Any, at: LanePlace, j: int, k: int) -> Int64:
    """Address of one element of (M, N, L)."""
    steps = [Int64(step) * (tensor.element_type.width // 8) for step in tensor.stride]
    offset = Int64(at.row + j) * steps[0] + Int64(at.column + k) * steps[1] + Int64(at.batch) * steps[2]
    return tensor.iterator.toint() + offset


def _flat(rows: Any) -> list[Any]:
    return [value for row in rows for value in row]


def _kind_of(tensor: Any) -> Any:
    kind = tensor.element_type
    return "float4_e2m1fn" if kind is cutlass.Float4E2M1FNx2 else kind
