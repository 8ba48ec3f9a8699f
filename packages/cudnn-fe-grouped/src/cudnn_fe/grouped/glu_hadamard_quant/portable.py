"""The FP4 grouped GEMM with an activation that is quantised, and its Hadamard transforms along columns and rows.

The transform along rows reads the activation again, block by block of each expert's rows, into codes by block; another
pass puts these into the order that the op documents, which depends on the expert's number of rows.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.activations import bounded, sigmoid, swiglu
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.block_quantize import BlockQuantizer, quantize_tile
from cudnn_fe.core.cute.block_tiles import LanePlace, ScalePlace, store_rows
from cudnn_fe.core.cute.exact import divide, multiply
from cudnn_fe.core.cute.expert_rows import first_slot, row_range
from cudnn_fe.core.cute.hadamard import hadamard16, hadamard16_of_lane_pair
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import e2m1_word, has_fp8
from cudnn_fe.grouped.glu_hadamard_quant.kernel_spec import HadamardQuantSpec
from cudnn_fe.grouped.scaled.portable_forward import Forward, fake_numbers, fake_tensors
from cudnn_fe.grouped.scaled.portable_results import TileResults
from cudnn_fe.grouped.scaled.portable_row_blocks import BLOCK, RowBlocks
from cudnn_fe.grouped.scaled.portable_tile_rows import expert_of

__all__ = ["fake_arguments", "launcher"]

_SIXTH = 1.0 / 6.0
_FLOAT_MAX = 3.4028234663852886e38
_THREADS = 128


def _rounded(values: list[Any]) -> list[Float32]:
    """To bfloat16."""
    return widen_pairs(narrow_pairs(values))


def _quarter(values: list[Any]) -> list[Float32]:
    return _rounded([multiply(value, 0.25) for value in values])


class _HadamardQuant(Forward):
    def __init__(self, spec: HadamardQuantSpec) -> None:
        super().__init__(spec.forward)
        self.quant = spec

    def activation(self, up: Float32, gate: Float32, numbers: Any) -> Float32:
        del numbers
        limit = self.quant.limit
        if limit is not None:
            up, gate = (bounded(value, -limit, limit) for value in (up, gate))
        if self.spec.epilogue == "swiglu":
            return swiglu(up, gate)
        return (up + Float32(1.0)) * (gate * sigmoid(gate * Float32(1.702)))

    def activated(self, values: list[list[Any]], gates: Any) -> list[list[Any]]:
        found = super().activated(values, gates)
        if not self.spec.gated:
            return found
        if self.quant.alpha is not None:
            found = [[multiply(value, self.quant.alpha) for value in row] for row in found]
        zero = Float32(0.0)
        return [[cutlass.select_(value == zero, zero, value) for value in row] for row in found]

    def begin(self, stream: Any, outputs: Any) -> None:
        """Nothing is folded."""

    def store(
        self, results: TileResults, values: Any, place: LanePlace, outputs: Any, scratch: Any, numbers: Any
    ) -> None:
        norm, transform_norm = numbers
        spec = self.quant
        rounded = [_rounded(row) for row in values]
        kind = "float4_e2m1fn" if spec.quantised else "bfloat16"
        self.rows(results, outputs[1], outputs[2], (kind, spec.scale), rounded, place, norm)
        if spec.columns and spec.quantised:
            results.store(scratch[0], rounded, place, self.spec.result_access)
        if spec.rows is not None:
            lane = cute.arch.thread_idx()[0] % 32
            turned = [_quarter(hadamard16_of_lane_pair(row, lane)) for row in rounded]
            kinds = (spec.rows, "float8_e4m3fn")
            self.rows(results, outputs[3], outputs[4], kinds, turned, place, transform_norm)

    def rows(
        self, results: TileResults, out: Any, scales: Any, kinds: Any, values: Any, place: LanePlace, norm: Any
    ) -> None:
        """Rows in bfloat16, or as FP4 with scales."""
        kind, scale = kinds
        access = self.spec.result_access
        if kind == "bfloat16":
            results.store(out, values, place, access)
            return
        quantizer = BlockQuantizer(kind, scale, "epilogue", _SIXTH, results.native)
        packed = ScalePlace(columns=False, block=BLOCK, packed=True)
        address = scales.iterator.toint()
        scaled = quantize_tile(quantizer, packed, values, norm, address, results.matrix, place)
        store_rows(results.target(out), kind, scaled, place, access, results.native, 4)

    def end(self, stream: Any, ends: Any, rows: Any, matrix: Any, outputs: Any, scratch: Any, numbers: Any) -> None:
        del matrix
        if not self.quant.columns:
            return
        *kept, codes, scales = scratch
        source = kept[0] if kept else outputs[1]
        columns = _Columns(min(self.spec.result_access, 2), has_fp8(self.spec.result.arch))
        columns.launch(stream, source, ends, (codes, scales, numbers[1]))
        _Placed().launch(stream, codes, scales, ends, rows, outputs[5], outputs[6])


class _Columns(RowBlocks):
    """Codes and scales of the transform along rows: eight bytes, and one, for each column of a block."""

    def __init__(self, access: int, native: bool) -> None:
        super().__init__(access)
        self.native = native

    def block(self, columns: Any, slot: Int32, expert: Int32, column: Int32, more: Any) -> None:
        del expert
        codes, scales, norm = more
        width = Int32(scales.shape[1])
        quantizer = BlockQuantizer("float4_e2m1fn", "float8_e4m3fn", "epilogue", _SIXTH, self.native)
        by, inverse = multiply(norm, _SIXTH), divide(1.0, norm)
        for k, line in enumerate(columns):
            turned = _quarter(hadamard16(line))
            largest = quantizer.larger(turned[0], turned[1])
            for value in turned[2:]:
                largest = quantizer.larger(largest, value)
            code, value = quantizer.e4m3(multiply(largest, by))
            scale = multiply(value, inverse)
            factor = cutlass.select_(scale == Float32(0.0), Float32(_FLOAT_MAX), divide(1.0, scale))
            factor = bounded(factor, -_FLOAT_MAX, _FLOAT_MAX)
            scaled = [multiply(value, factor) for value in turned]
            place = Int64(slot) * Int64(width) + Int64(column + k)
            inside = Int32(column + k < width)
            words = [e2m1_word(scaled[:8]), e2m1_word(scaled[8:])]
            store_global(codes.iterator.toint() + place * 8, words, 8, inside)
            store_global(scales.iterator.toint() + place, [code], 1, inside)


class _Placed:
    """Codes and scales by block to those of each expert: (W, rows) and (32, 4, W / 128, 4, rows / 64)."""

    @cute.jit
    def launch(
        self,
        stream: cuda.CUstream,
        codes: cute.Tensor,
        scales: cute.Tensor,
        offsets: cute.Tensor,
        rows: Int32,
        out: cute.Tensor,
        out_scales: cute.Tensor,
    ) -> None:
        """Launch on ``stream``; a thread moves the codes of 16 rows, and one scale."""
        units = Int32(out_scales.shape[0])
        kernel = self.kernel(codes, scales, offsets, rows, out, out_scales, units)
        kernel.launch(grid=((units - 1) // _THREADS + 1, 1, 1), block=(_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        codes: cute.Tensor,
        scales: cute.Tensor,
        offsets: cute.Tensor,
        rows: Int32,
        out: cute.Tensor,
        out_scales: cute.Tensor,
        units: Int32,
    ) -> None:
        """One unit."""
        unit = Int32(cute.arch.block_idx()[0]) * _THREADS + Int32(cute.arch.thread_idx()[0])
        width = Int32(scales.shape[1])
        per_row = width // BLOCK
        expert = expert_of(offsets, unit // per_row)
        known = Int32(expert < offsets.shape[0]) & Int32(unit < units)
        begin, count = row_range(offsets, rows, cutlass.min(expert, Int32(offsets.shape[0]) - 1))
        local = unit - begin * per_row
        first = first_slot(begin, expert, BLOCK)
        height = cutlass.max(count, Int32(1))
        known = known & Int32(count > 0)
        self.scale(scales, out_scales, unit, Int32(unit < units), known, local, first, height, width)
        found = codes.iterator.toint(), Int64(width), local, first, height, known
        target, valid = out.iterator.toint() + Int64(unit) * 8, Int32(unit < units)
        if height % BLOCK == 0:
            store_global(target, self.whole(*found), 8, valid)
        else:
            store_global(target, self.by_digit(*found), 8, valid)

    def whole(self, codes: Int64, width: Int64, local: Int32, first: Int32, height: Int32, known: Int32) -> list[Int32]:
        """16 codes of an expert of whole blocks: those of one column of a block."""
        blocks = height // BLOCK
        feature, slot = local // blocks, first + local % blocks
        return load_global(codes + (Int64(slot) * width + Int64(feature)) * 8, 8, known & Int32(feature < width))

    def by_digit(
        self, codes: Int64, width: Int64, local: Int32, first: Int32, height: Int32, known: Int32
    ) -> list[Int32]:
        """16 codes one by one."""
        words = []
        for half in range(2):
            word = Int32(0)
            for digit in range(8):
                place = Int64(local) * BLOCK + (8 * half + digit)
                feature, token = place // Int64(height), Int32(place % Int64(height))
                address = codes + (Int64(first + token // BLOCK) * width + feature) * 8 + Int64(token % BLOCK // 2)
                (byte,) = load_global(address, 1, known & Int32(feature < width))
                word = word | (((byte >> (token % 2 * 4)) & 0xF) << (4 * digit))
            words.append(word)
        return words

    def scale(
        self,
        scales: Any,
        out: Any,
        unit: Int32,
        valid: Int32,
        known: Int32,
        local: Int32,
        first: Int32,
        height: Int32,
        width: Int32,
    ) -> None:
        """The scale at one place: which feature's, and of which block of rows."""
        across, high = cutlass.max(height // 64, Int32(1)), width // 128
        feature = local // (4 * across) % high * 128
        feature = feature + local // (4 * across * high) % 4 * 32 + local // (16 * across * high)
        block = local % across * 4 + local // across % 4
        inside = known & Int32(feature < width) & Int32(block * BLOCK < height)
        address = scales.iterator.toint() + Int64(first + block) * Int64(width) + Int64(feature)
        (code,) = load_global(address, 1, inside)
        store_global(out.iterator.toint() + Int64(unit), [code], 1, valid)


def launcher(spec: HadamardQuantSpec) -> Any:
    """The host function ``launch(stream, *operands, *outputs, *scratch, *numbers)`` of a spec, to be compiled."""
    return _HadamardQuant(spec)


def fake_arguments(spec: HadamardQuantSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order."""
    scratch = []
    if spec.columns:
        scratch += [fake_tensor("bfloat16", -1, rank=2)] if spec.quantised else []
        scratch += [fake_tensor("uint8", -1, rank=rank) for rank in (3, 2)]
    return (*fake_tensors(spec.forward), *scratch, *fake_numbers(spec.forward))
