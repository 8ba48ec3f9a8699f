"""bfloat16 pairs times powers of two, as E2M1 codes: two values at a time, since no product needs rounding."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.block_quantize import BlockQuantizer
from cudnn_fe.core.cute.block_tiles import SIDE, LanePlace, Matrix, ScalePlace, store_vector_bytes
from cudnn_fe.core.cute.ptx_base import assemble, permute_bytes
from cudnn_fe.core.cute.small_floats import as_bits

__all__ = ["multiplies_in_pairs", "store_codes_of_pairs"]

# As `small_floats.e2m1_word` has it, with lines added to 64, whose unit in the last place is a half of a code in
# bfloat16. Multiplied by fusing with -0: SM80 has no other product of pairs, and zeros keep their signs.
_CODES = (
    "{ .reg .b32 h, m, a, b, c, u, v, w, x, y, z; mov.b32 z, 0x80008000; fma.rn.bf16x2 h, $1, $2, z; "
    "abs.bf16x2 m, h; mov.b32 u, 0x3F803F80; mov.b32 v, 0x3F003F00; mov.b32 w, 0x3E803E80; "
    "mov.b32 x, 0x42804280; mov.b32 y, 0x42824282; mov.b32 z, 0x42844284; "
    "fma.rn.bf16x2 a, m, u, x; fma.rn.bf16x2 b, m, v, y; fma.rn.bf16x2 c, m, w, z; "
    "min.bf16x2 a, a, b; min.bf16x2 a, a, c; mov.b32 x, 0x42874287; min.bf16x2 a, a, x; "
    "shl.b32 a, a, 12; lop3.b32 $0, a, h, 0x80008000, 0xD8; }"
)


def multiplies_in_pairs(quantizer: BlockQuantizer, norm: Any) -> bool:
    """Whether every multiplier is a power of two and the source bfloat16 as it is."""
    return (
        quantizer.element == "float4_e2m1fn"
        and quantizer.scale == "float8_e8m0fnu"
        and quantizer.source == "bfloat16"
        and norm is None
    )


def store_codes_of_pairs(
    place: ScalePlace,
    words: list[list[Int32]],
    by: list[Float32],
    target: Matrix,
    matrix: Matrix,
    at: LanePlace,
    access: int,
) -> None:
    """`block_quantize.store_codes` for such values.

    Args:
        place: Where scales lie.
        words: A lane's rows, pairs of bfloat16.
        by: Power of two, or NaN, of each row or column.
        target: The codes' memory.
        matrix: Extents of the quantised matrix.
        at: This lane's first row and column in it.
        access: Elements of a row that may be written at once.
    """
    left = matrix.columns - at.column
    if not place.columns:
        for j, row in enumerate(words):
            factor = _together(by[j], by[j])
            evens_odds = [_codes(word, factor) for word in row]
            address = target.place(at.batch, at.row + j, at.column // 2)
            store_vector_bytes(address, [_row_word(evens_odds)], 4, access, left, Int32(at.row + j < matrix.rows))
        return
    factors = [_together(by[k], by[k + 1]) for k in range(0, SIDE, 2)]
    for j in range(0, SIDE, 2):
        upper, lower = ([_codes(w, f) for w, f in zip(words[j + i], factors, strict=True)] for i in range(2))
        merged = [_merged(first, second) for first, second in zip(upper, lower, strict=True)]
        found = [permute_bytes(merged[k], merged[k + 1], 0x7531) for k in (0, 2)]
        address = target.place(at.batch, (at.row + j) // 2, at.column)
        store_vector_bytes(address, found, 8, access, left, Int32(at.row + j < matrix.rows))


def _codes(word: Any, factor: Any) -> Int32:
    """A pair's codes in the upper four bits of each half."""
    (codes,) = assemble(_CODES, [Int32], [Int32(word), Int32(factor)])
    return codes


def _together(low: Any, high: Any) -> Int32:
    """Two fp32 values that bfloat16 holds, as a pair."""
    return permute_bytes(as_bits(low), as_bits(high), 0x7632)


def _merged(first: Any, second: Any) -> Int32:
    """Bytes 1 and 3: codes of the first in the lower four bits, of the second in the upper."""
    code = "{ .reg .b32 e; shr.u32 e, $1, 4; lop3.b32 $0, e, $2, 0xF0F0F0F0, 0xD8; }"
    (merged,) = assemble(code, [Int32], [Int32(first), Int32(second)])
    return merged


def _row_word(pairs: list[Int32]) -> Int32:
    """Eight codes of four pairs in order."""
    halves = [permute_bytes(pairs[k], pairs[k + 1], 0x7351) for k in (0, 2)]
    evens, odds = (permute_bytes(halves[0], halves[1], selector) for selector in (0x5410, 0x7632))
    return _merged(evens, odds)
