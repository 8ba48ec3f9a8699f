"""Pieces of the block-scaled references, in array-API style."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype, cast, is_jax, maximum_of
from cudnn_fe.core.block_scale import (
    BlockFormat,
    dequantize,
    quantize,
    scale_blocks,
    split_expert_columns,
    swizzle_scales,
    unswizzle_scales,
)
from cudnn_fe.core.codecs import E8M0, format_of, from_codes, unpack_fp4
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.addresses import gather_bytes
from cudnn_fe.grouped.groups import Groups, grouped_product
from cudnn_fe.grouped.unfused.reference import empty, zeros
from cudnn_fe.grouped.weights import dense_weights, in_dtype

if TYPE_CHECKING:
    from cudnn_fe.core.block_scale import Recipe
    from cudnn_fe.core.dtypes import DType
    from cudnn_fe.grouped.scaled.problem import ScaledRows

__all__ = [
    "column_quantised",
    "ends_of",
    "finished",
    "largest",
    "largest_block",
    "nothing",
    "rectified",
    "row_quantised",
    "scaled_product",
]


def ends_of(problem: ScaledRows, xp: Any, offsets: Any) -> Any:
    """The ends of the groups: the offsets, or all rows for the one expert."""
    return xp.zeros_like(offsets) + problem.a_tensor.shape[0] if problem.single_group else offsets


def dequantized(xp: Any, codes: Any, plain: Any, format: BlockFormat) -> Any:
    """float32 values of codes (..., K) and plain scales (..., K / block)."""
    codes = codes.view(xp.uint8)
    return dequantize(unpack_fp4(codes) if format.element.bits == 4 else codes, plain, format)


def scaled_product(problem: ScaledRows, xp: Any, groups: Groups, a: Any, b: Any, sfa: Any, sfb: Any) -> Any:
    """``sum_k (A SFA)[m,k] (B SFB)[expert of m,n,k]`` as float32 (M, N); zeros in the rows past the end."""
    m, n, k, count = problem.extents
    if k == 0:
        return zeros(xp, (m, n), a)
    format = problem.format
    columns = -(-k // format.block)
    left = dequantized(xp, a, unswizzle_scales(sfa.view(xp.uint8), m, columns)[0], format)
    if problem.discrete:
        size = 512 * -(-n // 128) * -(-columns // 4)
        sfb = xp.reshape(gather_bytes(xp, sfb, size), (-1,))
    weights = dense_weights(problem, xp, b)
    plain = unswizzle_scales(sfb.view(xp.uint8), n, columns)
    if is_jax(xp):
        return grouped_product(xp, groups, left, dequantized(xp, weights, plain, format))
    # One expert after another: dequantising takes several times the memory of its result.
    matrices = [dequantized(xp, weights[expert], plain[expert], format) for expert in range(count)]
    return grouped_product(xp, groups, left, xp.stack(matrices))


def nothing(problem: ScaledRows, xp: Any, like: Any) -> tuple[Any, ...]:
    """The results of a problem without rows or columns."""
    results = empty(xp, problem, like)
    return tuple(
        result + problem.amax_start if spec.name == "amax_tensor" else result
        for result, spec in zip(results, problem.outputs, strict=True)
    )


def rectified(xp: Any, x: Any) -> Any:
    """``max(x, 0)`` with NaN kept."""
    return xp.where(x <= 0, xp.zeros_like(x), x)


def largest(xp: Any, groups: Groups, x: Any, start: float) -> Any:
    """(L,) float32: ``max |x|`` over each expert's rows and all columns, NaN if one is; ``start`` without rows."""
    blocks, height = groups.rows.shape
    by_row = maximum_of(xp, xp.abs(x), 1)
    placed = xp.reshape(xp.take(by_row, xp.reshape(groups.rows, (blocks * height,)), axis=0), (blocks, height))
    lowest = xp.zeros_like(placed) + start
    return largest_block(xp, groups, maximum_of(xp, xp.where(groups.used, placed, lowest), 1), start)


def largest_block(xp: Any, groups: Groups, by_block: Any, start: float) -> Any:
    """(L,): the largest value of each expert's blocks, or ``start``."""
    used, lowest = groups.used[:, 0], xp.zeros_like(by_block) + start
    own = xp.stack([(groups.expert == e) & used for e in range(groups.count)])
    return maximum_of(xp, xp.where(own, by_block[None, :], lowest[None, :]), 1)


def row_quantised(xp: Any, y: Any, kind: DType, norm: Any) -> tuple[Any, Any]:
    """``y`` (M, X) with a scale per 32 columns: values of the dtype, and packed E8M0 scales."""
    values, scales = _quantised(xp, y, kind, norm, 1, "epilogue")
    return values, _packed(scales)


def column_quantised(
    xp: Any, y: Any, kind: DType, norm: Any, ends: Any, recipe: Recipe, *, by_expert: bool
) -> tuple[Any, Any]:
    """``y`` (M, X) with a scale per 32 rows: values, and packed scales, as one matrix or expert after expert."""
    values, scales = _quantised(xp, y, kind, norm, 0, recipe)
    packed = swizzle_scales(xp.permute_dims(scales, (1, 0)))
    if by_expert:
        packed = xp.reshape(split_expert_columns(packed, ends), packed.shape)
    return values, from_codes(packed, E8M0)


def _packed(scales: Any) -> Any:
    return from_codes(swizzle_scales(scales), E8M0)


def _quantised(xp: Any, y: Any, kind: DType, norm: Any, axis: int, recipe: Recipe) -> tuple[Any, Any]:
    if kind.is_fp8:
        got = quantize(y, BlockFormat(format_of(kind.name), E8M0, 32), axis=axis, recipe=recipe, norm=norm)
        return from_codes(got.codes, kind.name), got.scales
    values, scales = scale_blocks(y, E8M0, 32, axis=axis, recipe=recipe, norm=norm)
    return astype(values, kind.name), scales


def finished(
    problem: ScaledRows, xp: Any, groups: Groups, y: Any, norm: Any, ends: Any, recipe: Recipe, amax: Any
) -> tuple[Any, ...]:
    """D, D by columns, amax, and the scales of both: what is not wanted has no element."""
    amax = amax if problem.keep_amax else amax[:0]
    if not problem.quantised:
        d = cast(y, problem.d_dtype)
        none = in_dtype(xp, xp.reshape(xp.astype(y[:0], xp.uint8), (-1,)), dtype("float8_e8m0fnu"))
        return d, d[:0], amax, none, none
    d, by_rows = row_quantised(xp, y, problem.d_dtype, norm)
    d_col, by_columns = column_quantised(xp, y, problem.d_dtype, norm, ends, recipe, by_expert=problem.expert_columns)
    return d, d_col, amax, by_rows, by_columns
