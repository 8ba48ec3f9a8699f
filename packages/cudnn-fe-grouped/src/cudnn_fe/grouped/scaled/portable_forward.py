"""The block-scaled grouped GEMMs that go forward: a product in float32, then an activation and its results.

Activation, largest magnitudes and block quantisation of one tile stay in registers. The product is read once; that it
lies in memory at all is what fused epilogues would save.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.activations import geglu, rectified, situglu, swiglu, tanh
from cudnn_fe.core.cute.amax import clear_amax
from cudnn_fe.core.cute.arguments import fake_tensor, named
from cudnn_fe.core.cute.block_tiles import SIDE, THREADS, LanePlace, Matrix, lane_place, load_vector, tile_walk
from cudnn_fe.core.cute.exact import add, multiply
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.vectors import widen
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.launch_sm90 import tensors_and_scalars
from cudnn_fe.grouped.scaled.forward_spec import ForwardSpec
from cudnn_fe.grouped.scaled.portable_product import ScaledProduct, fake_codes, fake_product_scratch
from cudnn_fe.grouped.scaled.portable_results import MATRIX, TileResults, kept, scale_walk
from cudnn_fe.grouped.scaled.portable_tile_rows import TileRows, load_rows

__all__ = ["Forward", "fake_arguments", "fake_numbers", "fake_tensors", "launcher"]


class Forward:
    """The launches of one op; those that make more of an activation override what begins, ends and stores.

    Args:
        spec: What to compile for.
    """

    def __init__(self, spec: ForwardSpec) -> None:
        self.spec = spec
        self.product = ScaledProduct(spec.product)

    def operands(self) -> list[tuple[str, bool]]:
        """Names of the operands in the op's order, and which are there."""
        spec = self.spec
        optional = {
            "prob": spec.prob_dtype is not None,
            "norm": spec.norm,
            "bias": spec.bias_dtype is not None,
            "row_scale": spec.row_scale,
            "matrix": spec.matrix_dtype is not None,
        }
        return [*((name, True) for name in ("a", "b", "sfa", "sfb", "offsets", "alpha")), *optional.items()]

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *arguments: Any, **scalars: Any) -> None:
        """Launch on ``stream``: operands, outputs, scratch, numbers."""
        spec = self.spec
        tensors, numbers = arguments, ()
        if cutlass.const_expr(spec.numbers > 0):
            tensors, numbers = tensors_and_scalars(arguments, scalars, spec.numbers)
        given = named(self.operands(), tensors)
        count = sum([present for _, present in self.operands()])
        outputs = tensors[count : count + len(spec.out_dtypes)]
        scratch = tensors[count + len(spec.out_dtypes) :]
        m, n = Int32(given.a.shape[0]), Int32(outputs[0].shape[1])
        k = Int32(given.a.shape[1]) * (2 if spec.product.element == "float4_e2m1fn" else 1)
        product, ends = self.product.launch(
            stream, given.a, given.b, given.sfa, given.sfb, given.offsets, (m, n, k), scratch[: self.product.scratch]
        )
        more = tuple(scratch[self.product.scratch :])
        self.begin(stream, outputs)
        blocks, walk = tile_walk(m, n, 1)
        if cutlass.const_expr(spec.scales):
            blocks, walk = scale_walk(m, n, 2 if spec.gated else 1)
        factors = (given.alpha, given.prob, given.norm, given.bias, given.row_scale)
        numbers = tuple(map(Float32, numbers))
        kernel = self.kernel(product, ends, (m, n), factors, tuple(outputs), more, numbers, walk)
        kernel.launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)
        self.end(stream, ends, m, given.matrix, outputs, more, numbers)

    @cute.kernel
    def kernel(
        self,
        product: cute.Tensor,
        offsets: cute.Tensor,
        extents: Any,
        factors: Any,
        outputs: Any,
        scratch: Any,
        numbers: Any,
        walk: Any,
    ) -> None:
        """One tile of a warp."""
        spec = self.spec
        alpha, prob, norm, bias, row_scale = factors
        at = lane_place(walk)
        matrix = replace(Matrix.of(product, MATRIX), rows=extents[0], columns=extents[1])
        rows = TileRows.of(offsets, at, matrix.rows)
        inside = rows.of_lane(rows.inside, at, SIDE)
        scale = rows.load(alpha, rows.expert)
        if cutlass.const_expr(row_scale is not None):
            scale = multiply(scale, rows.load(row_scale, rows.row))
        gate = None if cutlass.const_expr(prob is None) else rows.load(prob, rows.row)
        sums = load_rows(product, matrix, at, SIDE)
        values = _weighted(sums, rows.of_lane(scale, at, SIDE))
        if cutlass.const_expr(bias is not None):
            experts = rows.of_lane(rows.expert, at, SIDE)
            shifts = self.bias(bias, at, experts, inside, matrix.columns - at.column)
            if cutlass.const_expr(spec.epilogue == "none" and prob is not None):
                shifts = _weighted(shifts, rows.of_lane(gate, at, SIDE))
            values = [[add(x, y) for x, y in zip(*pair, strict=True)] for pair in zip(values, shifts, strict=True)]
        values = kept(values, inside, matrix.columns - at.column)
        if cutlass.const_expr(spec.c_dtype is not None):
            TileResults(spec.result, offsets, rows, matrix, None).store(outputs[0], values, at, spec.access)
        place = at
        if cutlass.const_expr(spec.gated):
            values, place = self.gated(values, at, numbers)
            matrix = replace(matrix, columns=matrix.columns // 2)
        count = len(values)
        gates = None if cutlass.const_expr(prob is None) else rows.of_lane(gate, place, count)
        values = kept(
            self.activated(values, gates), rows.of_lane(rows.inside, place, count), matrix.columns - place.column
        )
        self.store(TileResults(spec.result, offsets, rows, matrix, norm), values, place, outputs, scratch, numbers)

    def begin(self, stream: Any, outputs: Any) -> None:
        """Launch what results start from."""
        if self.spec.result.keep_amax:
            clear_amax(stream, outputs[3], float("-inf"))

    def end(self, stream: Any, ends: Any, rows: Any, matrix: Any, outputs: Any, scratch: Any, numbers: Any) -> None:
        """Launch what reads results of whole matrices."""

    def store(
        self, results: TileResults, values: Any, place: LanePlace, outputs: Any, scratch: Any, numbers: Any
    ) -> None:
        """The results of a tile's activation."""
        del scratch, numbers
        results.finish(values, place, self.spec.result_access, outputs[1], outputs[2], outputs[3], outputs[4:6])

    def bias(self, bias: Any, at: LanePlace, experts: list[Any], inside: list[Any], left: Any) -> list[list[Float32]]:
        """Each row's expert's bias of a lane's eight columns."""
        kind = bias.element_type
        size = kind.width // 8
        along, across = (Int64(step) * size for step in bias.stride)
        found = []
        for expert, own in zip(experts, inside, strict=True):
            address = bias.iterator.toint() + Int64(expert) * across + Int64(at.column) * along
            if self.spec.bias_access:
                words = load_vector(address, kind.width, self.spec.bias_access, left, own)
            else:
                single = [load_global(address + k * along, size, own & Int32(k < left))[0] for k in range(SIDE)]
                pairs = zip(single[::2], single[1::2], strict=True)
                words = single if size == 4 else [low | (high << 16) for low, high in pairs]
            found.append(widen(kind, words, SIDE))
        return found

    def gated(self, values: Any, at: LanePlace, numbers: Any) -> tuple[list[list[Any]], LanePlace]:
        """The activation of the tile's 32 gate and 32 up columns, which lie four lanes apart.

        Lanes with gates finish the first four rows, those with up columns the others.
        """
        vector = cute.arch.thread_idx()[0] % 8
        has_gate = vector < 4
        results = []
        for j in range(SIDE // 2):
            row = []
            for first, last in zip(values[j], values[j + 4], strict=True):
                own = cutlass.select_(has_gate, first, last)
                other = cute.arch.shuffle_sync_bfly(cutlass.select_(has_gate, last, first), 4)
                gate, up = cutlass.select_(has_gate, own, other), cutlass.select_(has_gate, other, own)
                row.append(self.activation(up, gate, numbers))
            results.append(row)
        first_row = at.row + cutlass.select_(has_gate, Int32(0), Int32(4))
        column = (at.column - vector * SIDE) // 2 + vector % 4 * SIDE
        return results, LanePlace(at.batch, first_row, column)

    def activation(self, up: Float32, gate: Float32, numbers: Any) -> Float32:
        """One value."""
        offset, alpha, high, low, beta1, beta2 = numbers
        if self.spec.epilogue == "swiglu":
            return swiglu(up, gate)
        if self.spec.epilogue == "geglu":
            return geglu(up, gate, offset, alpha, high, low)
        return situglu(up, gate, beta1, beta2)

    def activated(self, values: list[list[Any]], gates: Any) -> list[list[Any]]:
        """Values, gated or not yet activated, times the rows' factors."""
        if self.spec.epilogue == "srelu":
            return self.squared(values, gates)
        plain = self.spec.epilogue == "none" and self.spec.bias_dtype is not None
        return values if gates is None or plain else _weighted(values, gates)

    def squared(self, values: list[list[Any]], gates: Any) -> list[list[Any]]:
        """The squared ReLU, bounded or not, times the rows' factors."""
        clamp = self.spec.clamp
        found = []
        for j, row in enumerate(values):
            by = None if gates is None else gates[j]
            if clamp is None:
                parts = [rectified(value) for value in row]
            else:
                parts = [rectified(tanh(multiply(value, 1.0 / clamp))) for value in row]
                by = Float32(clamp * clamp) if by is None else multiply(by, clamp * clamp)
            squares = [multiply(part, part) for part in parts]
            found.append(squares if by is None else [multiply(square, by) for square in squares])
        return found


def _weighted(values: list[list[Any]], gates: Any) -> list[list[Any]]:
    return [[multiply(value, gate) for value in row] for row, gate in zip(values, gates, strict=True)]


def launcher(spec: ForwardSpec) -> Any:
    """The host function ``launch(stream, *operands, *outputs, *scratch, *numbers)`` of a spec, to be compiled."""
    return Forward(spec)


def fake_arguments(spec: ForwardSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order."""
    return (*fake_tensors(spec), *fake_numbers(spec))


def fake_numbers(spec: ForwardSpec) -> tuple[Any, ...]:
    """Stand-ins for the numbers of a launch."""
    return tuple(Float32(0.0) for _ in range(spec.numbers))


def fake_tensors(spec: ForwardSpec) -> tuple[Any, ...]:
    """Stand-ins for operands, outputs and the product's scratch."""
    (a, sfa), (b, sfb) = fake_codes(spec.product.a), fake_codes(spec.product.b)
    given = [a, b, sfa, sfb, _vector("int32"), _vector("float32")]
    given += [_vector(spec.prob_dtype)] if spec.prob_dtype else []
    given += [_vector("float32")] if spec.norm else []
    if spec.bias_dtype:
        size = dtype(spec.bias_dtype).itemsize
        given.append(fake_tensor(spec.bias_dtype, -1, rank=2, alignment=min(size * max(spec.bias_access, 1), 16)))
    given += [_vector("float32")] if spec.row_scale else []
    given += [fake_tensor(spec.matrix_dtype, -1, rank=2, alignment=2)] if spec.matrix_dtype else []
    outputs = [fake_tensor(kind, -1, rank=rank) for kind, rank in zip(spec.out_dtypes, spec.out_ranks, strict=True)]
    return (*given, *outputs, *fake_product_scratch(spec.product))


def _vector(kind: str) -> Any:
    return fake_tensor(kind, -1, rank=1, alignment=dtype(kind).itemsize)
