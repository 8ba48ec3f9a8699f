"""Pieces of the block-scaled GEMMs' references, in array-API style."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import cast, maximum_of
from cudnn_fe.core.block_scale import atom_view, dequantize, quantize, swizzle_scales, unswizzle_scales
from cudnn_fe.core.codecs import from_codes, unpack_fp4
from cudnn_fe.gemm.arrays import batched_product

if TYPE_CHECKING:
    from cudnn_fe.core.block_scale import BlockFormat
    from cudnn_fe.gemm.scaled import QuantisingProblem, ScaledGemmProblem

__all__ = ["finished", "largest", "scaled_product"]


def scaled_product(problem: ScaledGemmProblem, xp: Any, a: Any, b: Any, sfa: Any, sfb: Any) -> Any:
    """``sum_k (A * SFA)[m, k, l] * (B * SFB)[n, k, l]`` as float32 (M, N, L)."""
    m, n, k, _ = problem.extents
    left, right = (
        _dequantized(xp, x, scales, rows, k, problem.format) for x, scales, rows in ((a, sfa, m), (b, sfb, n))
    )
    return batched_product(xp, left, right)


def _dequantized(xp: Any, x: Any, scales: Any, rows: int, k: int, format: BlockFormat) -> Any:
    codes = x.view(xp.uint8)
    if format.element.bits == 4:
        codes = unpack_fp4(codes, axis=1)
    plain = unswizzle_scales(scales.view(xp.uint8), rows, -(-k // format.block))
    return dequantize(codes, xp.permute_dims(plain, (1, 2, 0)), format, axis=1)


def largest(xp: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """``max |x|`` of all elements, NaN if one is, minus infinity if there is none."""
    if 0 in x.shape:
        return xp.reshape(xp.sum(x) - xp.inf, shape)
    return xp.reshape(maximum_of(xp, xp.abs(x)), shape)


def finished(problem: QuantisingProblem, xp: Any, y: Any, norm_const: Any) -> tuple[Any, Any, Any]:
    """The last matrix (M, columns, L) in its dtype, its largest magnitude before that, and its packed scales.

    An FP8 one is quantised in blocks along its columns, by the epilogue's recipe.
    """
    amax = largest(xp, y, problem.amax_shape)
    format = problem.result_format
    if format is None:
        return cast(y, problem.result_dtype, axis=1), amax, xp.reshape(xp.astype(y[:0], xp.uint8), (-1,))
    got = quantize(y, format, axis=1, norm=norm_const)
    packed = from_codes(swizzle_scales(xp.permute_dims(got.scales, (2, 0, 1))), format.scale.name)
    codes = from_codes(got.codes, format.element.name)
    return codes, amax, atom_view(packed) if problem.scales_atom else packed
