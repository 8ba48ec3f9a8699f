"""Quantisation of a lane's part of blocks in registers: the recipes of `cudnn_fe.core.block_scale`, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.bfloat16_pairs import widen_pairs
from cudnn_fe.core.cute.block_tiles import SIDE, LanePlace, Matrix, ScalePlace, store_vector_bytes
from cudnn_fe.core.cute.exact import fused_multiply_add, magnitude, multiply
from cudnn_fe.core.cute.ptx_base import assemble, permute_bytes
from cudnn_fe.core.cute.row_vectors import store_global
from cudnn_fe.core.cute.small_floats import E2M1_UNIT, E4M3, as_bits, as_float, e2m1_word, fp8_words

__all__ = [
    "BlockQuantizer",
    "e8m0_value",
    "first_code",
    "gather",
    "largest_magnitudes",
    "largest_of_pairs",
    "quantize_tile",
    "reduce_scatter",
    "store_codes",
    "store_scales",
]

_INFINITY, _NAN = 0x7F800000, 0x7FC00000
_ROW_LANES, _COLUMN_LANES = (2, 1), (16, 8)  # lane bits that a block of 32 spans
_HALVES_LANE = 4
_FLOAT_MAX = 3.4028234663852886e38


def _bounded(value: Any) -> Float32:
    """At most the largest finite number; NaN stays."""
    (bounded,) = assemble("min.NaN.f32 $0, $1, $2;", [Float32], [Float32(value), Float32(_FLOAT_MAX)])
    return bounded


def e8m0_value(code: Any) -> Float32:
    """The value of an E8M0 code."""
    bits = cutlass.select_(code == 0, Int32(0x400000), code << 23)
    return as_float(cutlass.select_(code == 0xFF, Int32(_NAN), bits))


@dataclass(frozen=True)
class BlockQuantizer:
    """One recipe for one format.

    Attributes:
        element: Element type's name.
        scale: Scale type's name.
        recipe: See `cudnn_fe.core.block_scale.quantize`.
        quotient: The float32 that a block's largest magnitude is multiplied by.
        native: Whether the target converts to FP8.
        source: Element type of the source, where it may be read in pairs.
        fold: Whether FP4 values may be multiplied by `E2M1_UNIT` too, for `store_codes` alone.
    """

    element: str
    scale: str
    recipe: str
    quotient: float
    native: bool
    source: str = "float32"
    fold: bool = False

    def multiplies(self, norm: Any) -> bool:
        """Whether values are multiplied before the recipe reads them."""
        return self.recipe == "converter" and norm is not None

    def prepared(self, value: Any, norm: Any) -> Float32:
        """A value as the recipe reads it."""
        return multiply(value, norm) if self.multiplies(norm) else value

    def folds(self, norm: Any) -> bool:
        """Whether multipliers are times `E2M1_UNIT`: where they are a scale's reciprocal alone, that is exact."""
        fp4 = self.element == "float4_e2m1fn"
        return self.fold and fp4 and (norm is None or self.recipe == "converter")

    def apart(self, norm: Any) -> bool:
        """Whether no multiplied value is a little above the middle between two codes.

        bfloat16 sources have eight significant bits, scales four and middles three: a quotient that is no middle is
        at least 2^-8 of it away from one.
        """
        return self.folds(norm) and self.source == "bfloat16" and not self.multiplies(norm)

    def larger(self, a: Any, b: Any) -> Float32:
        """The larger magnitude; NaN wins, or loses where the recipe leaves it out."""
        mode = "" if self.recipe == "power_of_two" else ".NaN"
        code = f"{{ .reg .f32 a, b; abs.f32 a, $1; abs.f32 b, $2; max{mode}.f32 $0, a, b; }}"
        (found,) = assemble(code, [Float32], [Float32(a), Float32(b)])
        return found

    def larger_pair(self, a: Any, b: Any) -> Int32:
        """The same of two words of 16-bit pairs, element by element; the sign of what is found means nothing."""
        mode = "" if self.recipe == "power_of_two" else ".NaN"
        kind = "bf16x2" if self.source == "bfloat16" else "f16x2"
        if self.native:
            code = f"max{mode}.xorsign.abs.{kind} $0, $1, $2;"
        else:
            code = f"{{ .reg .b32 a, b; abs.{kind} a, $1; abs.{kind} b, $2; max{mode}.{kind} $0, a, b; }}"
        (found,) = assemble(code, [Int32], [Int32(a), Int32(b)])
        return found

    def unpaired(self, word: Any) -> list[Float32]:
        """The two elements of a word, without signs."""
        word = Int32(word) & 0x7FFF7FFF
        if self.source == "bfloat16":
            return widen_pairs([word])
        code = "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }"
        return assemble(code, [Float32, Float32], [word])

    def scale_and_multiplier(self, largest: Any, norm: Any) -> tuple[Int32, Float32]:
        """The scale's code and what each value is multiplied by, from the block's largest magnitude."""
        factor = None if self.recipe == "converter" else norm
        if factor is None:
            wanted = multiply(largest, self.quotient)
        elif self.recipe == "epilogue_columns":
            wanted = multiply(largest, multiply(self.quotient, factor))
        else:
            wanted = multiply(multiply(largest, self.quotient), factor)
        code, inverse = self._e8m0(wanted) if self.scale == "float8_e8m0fnu" else self._e4m3(wanted)
        if self.folds(norm):
            return code, multiply(_bounded(inverse), self._unit(code, norm))
        if factor is None:
            return code, _bounded(inverse)
        if self.recipe == "epilogue_columns":
            inverse = _bounded(inverse)
        return code, _bounded(multiply(factor, inverse))

    @staticmethod
    def _e8m0(wanted: Any) -> tuple[Int32, Float32]:
        """Rounded up, saturating, and its exact reciprocal."""
        bits = as_bits(wanted)
        # A subnormal's bits count from 0, not from 2**-127: half the range is byte 0.
        up = cutlass.select_(bits < 0x800000, Int32(0x3FFFFF), Int32(0x7FFFFF))
        code = cutlass.min((bits + up) >> 23, 254)
        inverse = cutlass.select_(code == 254, Int32(0x400000), (254 - code) << 23)
        is_nan = bits > _INFINITY
        return cutlass.select_(is_nan, Int32(0xFF), code), as_float(cutlass.select_(is_nan, Int32(_NAN), inverse))

    def e4m3(self, wanted: Any) -> tuple[Int32, Float32]:
        """The code of a scale rounded to nearest, saturating, and its value."""
        if self.native:
            text = (
                "{ .reg .b16 two, lo, hi; .reg .b32 wide; cvt.rn.satfinite.e4m3x2.f32 two, 0f00000000, $2; "
                "cvt.u32.u16 $0, two; cvt.rn.f16x2.e4m3x2 wide, two; mov.b32 {lo, hi}, wide; cvt.f32.f16 $1, lo; }"
            )
            code, value = assemble(text, [Int32, Float32], [Float32(wanted)])
            return code, value
        is_nan = as_bits(wanted) > _INFINITY
        size = cute.arch.fmin(wanted, Float32(E4M3.largest))
        code = cutlass.select_(is_nan, Int32(0x7F), E4M3.code(size))
        return code, as_float(cutlass.select_(is_nan, Int32(_NAN), as_bits(E4M3.value(size))))

    def _e4m3(self, wanted: Any) -> tuple[Int32, Float32]:
        """`e4m3`'s code, and the reciprocal, rounded; infinity for 0."""
        code, value = self.e4m3(wanted)
        # Four significant bits: one correction rounds the reciprocal right, from any start two units off.
        (near,) = assemble("rcp.approx.ftz.f32 $0, $1;", [Float32], [value])
        error = fused_multiply_add(as_float(as_bits(value) ^ -0x80000000), near, 1.0)
        inverse = fused_multiply_add(near, error, near)
        return code, as_float(cutlass.select_(code == 0, Int32(_INFINITY), as_bits(inverse)))

    def _unit(self, code: Any, norm: Any) -> Float32:
        """What a reciprocal is multiplied by for `e2m1_word`.

        Of all products of a middle, a scale and its reciprocal, rounded, only 5 * 15 * (1 / 15) is not the middle but
        above it. There a factor does what the last bit, which `e2m1_word` then drops, would do: it lifts the other
        middles of a scale of 15 too, but 3 and 7 go up to the even code anyway, and the lowest, 1, is not lifted
        beyond what fp16 cuts off.
        """
        if self.scale == "float8_e8m0fnu" or not self.apart(norm):
            return Float32(E2M1_UNIT)
        is_15 = ((code & 7) == 7) & (code > 7)
        return Float32(cutlass.select_(is_15, Float32(E2M1_UNIT * (1.0 + 2.0**-10)), Float32(E2M1_UNIT)))

    def words(self, values: list[Any], norm: Any) -> list[Int32]:
        """Multiplied values as codes: four FP8 or eight FP4 a word."""
        if self.element == "float4_e2m1fn":
            how = {"scaled": self.folds(norm), "apart": self.apart(norm)}
            return [e2m1_word(values[start : start + 8], **how) for start in range(0, len(values), 8)]
        return fp8_words(self.element, values, self.native)


def reduce_scatter(values: list[Any], masks: tuple[int, ...], lane: Any, larger: Any) -> tuple[list[Any], Int32]:
    """The largest of each value over the lanes that differ in the bits ``masks``, shared out among these lanes.

    Args:
        values: A power of two of them, the same ones in each lane.
        masks: Lane bits.
        lane: This lane.
        larger: The fold.

    Returns:
        This lane's share of the results, and the index of its first.
    """
    first = Int32(0)
    for mask in masks:
        half = len(values) // 2
        upper = (lane & mask) != 0
        kept = [cutlass.select_(upper, values[half + i], values[i]) for i in range(half)]
        sent = [cutlass.select_(upper, values[i], values[half + i]) for i in range(half)]
        values = [larger(k, cute.arch.shuffle_sync_bfly(s, mask)) for k, s in zip(kept, sent, strict=True)]
        first = first + cutlass.select_(upper, Int32(half), Int32(0))
    return values, first


def gather(values: list[Any], masks: tuple[int, ...], lane: Any) -> list[Any]:
    """The inverse of `reduce_scatter`: every lane gets all values again, each from the lane that has it."""
    first = lane & ~sum(masks)
    found = []
    for part in range(1 << len(masks)):
        bits = sum(mask for index, mask in enumerate(reversed(masks)) if part >> index & 1)
        found += [cute.arch.shuffle_sync(value, first | bits if bits else first) for value in values]
    return found


def largest_magnitudes(quantizer: BlockQuantizer, place: ScalePlace, rows: list[list[Any]]) -> list[Any]:
    """The largest magnitude of each of a lane's rows, or columns, of fp32 values."""
    found = []
    for line in zip(*rows, strict=True) if place.columns else rows:
        largest = quantizer.larger(line[0], line[1])
        for value in line[2:]:
            largest = quantizer.larger(largest, value)
        found.append(largest)
    return found


def largest_of_pairs(quantizer: BlockQuantizer, place: ScalePlace, pairs: list[list[Any]]) -> list[Any]:
    """The same as four words of two rows, or columns, from words of 16-bit pairs."""
    found: list[Any] = []
    for line in zip(*pairs, strict=True) if place.columns else pairs:
        largest = quantizer.larger_pair(line[0], line[1])
        for word in line[2:]:
            largest = quantizer.larger_pair(largest, word)
        found.append(largest)
    if place.columns:
        return found
    evens_and_odds = zip(found[::2], found[1::2], strict=True)
    halves = [(permute_bytes(a, b, 0x5410), permute_bytes(a, b, 0x7632)) for a, b in evens_and_odds]
    return [quantizer.larger_pair(low, high) for low, high in halves]


def store_scales(
    quantizer: BlockQuantizer,
    place: ScalePlace,
    largest: list[Any],
    norm: Any,
    scales: Any,
    matrix: Matrix,
    at: LanePlace,
    rows: int = SIDE,
    *,
    paired: bool = False,
) -> list[Float32]:
    """Store the scales of a lane's blocks, and return what each row, or column, is multiplied by.

    Args:
        quantizer: The recipe.
        place: Where scales lie.
        largest: Largest magnitude of each row, or column, of a lane.
        norm: The factor, or None.
        scales: Address of the scales.
        matrix: Extents of the quantised matrix.
        at: This lane's first row and column in it.
        rows: Rows of a lane: eight; or four, where lanes that differ in bit 4 hold the eight rows of the same columns.
        paired: Whether they are words of `largest_of_pairs`.
    """
    lane = cute.arch.thread_idx()[0] % 32
    masks = (_COLUMN_LANES if place.columns else _ROW_LANES)[1 if place.block == 16 else 0 :]
    if place.columns and rows < SIDE:
        masks = (*masks, _HALVES_LANE)
    owned, first = reduce_scatter(largest, masks, lane, quantizer.larger_pair if paired else quantizer.larger)
    if paired:
        owned, first = [value for word in owned for value in quantizer.unpaired(word)], first * 2
    if quantizer.multiplies(norm):  # rounding keeps the order: the largest product is that of the largest
        owned = [magnitude(multiply(value, norm)) for value in owned]
    found = [quantizer.scale_and_multiplier(one, norm) for one in owned]
    offset, step, _ = place.locate(matrix, at, first)
    for index, (code, _) in enumerate(found):
        _, _, valid = place.locate(matrix, at, first + index)
        store_global(scales + offset + step * index, [code], 1, valid)
    return gather([multiplier for _, multiplier in found], masks, lane)


def _multiplied(place: ScalePlace, row: list[Any], by: list[Any], j: int) -> list[Any]:
    return [multiply(value, by[k if place.columns else j]) for k, value in enumerate(row)]


def quantize_tile(
    quantizer: BlockQuantizer,
    place: ScalePlace,
    values: list[list[Any]],
    norm: Any,
    scales: Any,
    matrix: Matrix,
    at: LanePlace,
) -> list[list[Any]]:
    """Store the scales of a lane's values, and return the values multiplied.

    Args:
        quantizer: The recipe.
        place: Where scales lie.
        values: Eight rows of eight, or four, as `store_scales` has it.
        norm: The factor, or None.
        scales: Address of the scales.
        matrix: Extents of the quantised matrix.
        at: This lane's first row and column in it.
    """
    largest = largest_magnitudes(quantizer, place, values)
    by = store_scales(quantizer, place, largest, norm, scales, matrix, at, len(values))
    prepared = [[quantizer.prepared(value, norm) for value in row] for row in values]
    return [_multiplied(place, row, by, j) for j, row in enumerate(prepared)]


def store_codes(
    quantizer: BlockQuantizer,
    place: ScalePlace,
    rows: list[list[Any]],
    by: list[Any],
    norm: Any,
    target: Matrix,
    matrix: Matrix,
    at: LanePlace,
    first: int,
    access: int,
    address: Int64,
) -> Int64:
    """Multiply, encode and store two of a lane's rows; FP4 in pairs along the quantised direction.

    Two at a time, since multiplied values of more would take too many registers.

    Args:
        quantizer: The recipe.
        place: Where scales lie.
        rows: Two rows of eight.
        by: What `store_scales` returned.
        norm: The factor that it got.
        target: The codes' memory.
        matrix: Extents of the quantised matrix.
        at: This lane's first row and column in it.
        first: The lane's rows before these, an even number.
        access: Elements of a row that may be written at once.
        address: Where these rows' codes go: `first_code` at first, then what the call before returned.

    Returns:
        Where the next rows' go.
    """
    left = matrix.columns - at.column
    prepared = [[quantizer.prepared(value, norm) for value in row] for row in rows]
    scaled = [_multiplied(place, row, by, first + j) for j, row in enumerate(prepared)]
    bits = 4 if quantizer.element == "float4_e2m1fn" else 8
    if bits == 4 and place.columns:
        together = [value for pair in zip(*scaled, strict=True) for value in pair]
        lines = [(first, 8, quantizer.words(together, norm))]
    else:
        lines = [(first + j, bits, quantizer.words(row, norm)) for j, row in enumerate(scaled)]
    for row, size, words in lines:
        if access == SIDE:
            below = cutlass.select_(left > 0, matrix.rows - at.row, Int32(0))
            store_global(address, words, size, below, above=row)
        else:
            store_vector_bytes(address, words, size, access, left, Int32(at.row + row < matrix.rows))
        address = address + target.row_bytes
    return address


def first_code(quantizer: BlockQuantizer, place: ScalePlace, target: Matrix, at: LanePlace) -> Int64:
    """Address of the codes of a lane's first row."""
    if quantizer.element != "float4_e2m1fn":
        return target.place(at.batch, at.row, at.column)
    return (
        target.place(at.batch, at.row // 2, at.column)
        if place.columns
        else target.place(at.batch, at.row, at.column // 2)
    )
