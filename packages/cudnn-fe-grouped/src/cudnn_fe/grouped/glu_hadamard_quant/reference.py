"""The definition of the FP4 grouped GEMM with an activation, quantised to NVFP4, and its transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudnn_fe.core.arrays import astype, cast, hadamard, is_jax, maximum_of, rounded, sigmoid
from cudnn_fe.core.block_scale import NVFP4, BlockFormat, quantize, swizzle_scales
from cudnn_fe.core.codecs import E2M1, E4M3, decode, encode, format_of, from_codes, pack_fp4
from cudnn_fe.core.pairs import split_pairs
from cudnn_fe.grouped.glu_hadamard.reference import blocks_of_rows
from cudnn_fe.grouped.groups import Groups, groups_of, keep
from cudnn_fe.grouped.scaled.pieces import ends_of, nothing, rectified
from cudnn_fe.grouped.scaled.problem import is_fp4
from cudnn_fe.grouped.scaled.reference import pre_activation
from cudnn_fe.grouped.weights import in_dtype

if TYPE_CHECKING:
    from cudnn_fe.core.tensor import TensorSpec
    from cudnn_fe.grouped.glu_hadamard_quant.op import GluHadamardQuant

__all__ = ["glu_hadamard_quant"]

_LARGEST = float(np.finfo(np.float32).max)


def glu_hadamard_quant(
    problem: GluHadamardQuant,
    xp: Any,
    a: Any,
    b: Any,
    sfa: Any,
    sfb: Any,
    offsets: Any,
    alpha: Any,
    prob: Any,
    norm: Any,
    bias: Any,
    row_scale: Any,
    norm_const: float,
    rht_norm_const: float,
) -> tuple[Any, ...]:
    """The results of `GluHadamardQuant`; those that are not wanted have no element.

    Args:
        problem: The bound problem; names activation, dtypes and wanted results.
        xp: Array namespace of the operands.
        a: (M, K) codes.
        b: (L, N, K) codes, or addresses.
        sfa: Packed scales of A, flat.
        sfb: Packed scales of the weights, flat, or addresses.
        offsets: (L,) ends.
        alpha: (L,).
        prob: (M,) or None, which is 1.
        norm: None.
        bias: (N, L) or None.
        row_scale: None.
        norm_const: Factor of a quantised D.
        rht_norm_const: Factor of quantised transforms.
    """
    del norm
    if 0 in problem.extents[:2]:
        return nothing(problem, xp, a)
    ends = ends_of(problem, xp, offsets)
    groups = groups_of(xp, ends, a.shape[0])
    x = pre_activation(problem, xp, groups, (a, b, sfa, sfb), alpha, prob, bias, row_scale)
    y = keep(xp, groups, _activated(problem, xp, x, prob))
    d = rounded(y, "bfloat16")
    m, width = d.shape
    specs = problem.outputs
    turned = d[:0]
    if problem.rht_rowwise_dtype is not None:
        turned = xp.reshape(_transformed(xp, xp.reshape(d, (m, width // 16, 16))), (m, width))
    return (
        cast(x, problem.c_dtype or "bfloat16"),
        *_rows(problem, xp, d, specs[1:3], norm_const),
        *_rows(problem, xp, turned, specs[3:5], rht_norm_const),
        *_columns(problem, xp, ends, d, specs[5:7], rht_norm_const),
    )


def _activated(problem: GluHadamardQuant, xp: Any, x: Any, prob: Any) -> Any:
    gate = 1.0 if prob is None else astype(prob, "float32")[:, None]
    if problem.epilogue == "srelu":
        r = rectified(xp, x)
        return (r * r) * gate
    a, u = split_pairs(xp, x)
    if problem.glu_limit is not None:
        most = xp.zeros_like(a) + problem.glu_limit
        a, u = (xp.minimum(xp.maximum(value, -most), most) for value in (a, u))
    if problem.epilogue == "swiglu":
        y = (u * (a * sigmoid(xp, a))) * gate
    else:
        y = ((u + 1.0) * (a * sigmoid(xp, 1.702 * a))) * gate
    y = y if problem.glu_alpha is None else y * problem.glu_alpha
    return xp.where(y == 0, xp.zeros_like(y), y)  # a negative zero becomes positive


def _transformed(xp: Any, blocks: Any) -> Any:
    """Of blocks of 16 along the last axis, rounded to bfloat16."""
    return rounded(0.25 * hadamard(xp, blocks), "bfloat16")


def _rows(problem: GluHadamardQuant, xp: Any, x: Any, specs: tuple[TensorSpec, ...], norm: float) -> tuple[Any, Any]:
    """A matrix in its dtype, and its packed scales along columns."""
    values, scales = specs
    none = in_dtype(xp, xp.reshape(xp.astype(x[:0], xp.uint8), (-1,)), scales.dtype)
    if not is_fp4(values.dtype):
        return cast(x, values.dtype), none
    format = BlockFormat(E2M1, format_of(scales.dtype.name), 16)
    got = quantize(x, NVFP4 if format.scale is E4M3 else format, axis=1, norm=norm)
    return _pairs(xp, got.codes, values), from_codes(swizzle_scales(got.scales), format.scale)


def _pairs(xp: Any, codes: Any, spec: TensorSpec) -> Any:
    packed = pack_fp4(codes)
    return packed if spec.dtype.name == "uint8" else in_dtype(xp, packed, spec.dtype)


def _columns(
    problem: GluHadamardQuant, xp: Any, ends: Any, d: Any, specs: tuple[TensorSpec, ...], norm: float
) -> tuple[Any, Any]:
    """The transform along each expert's rows, codes and scales in the order that the notes of the op give."""
    values, scales = specs
    if problem.rht_colwise_dtype is None:
        none = xp.reshape(xp.astype(d[:0], xp.uint8), (-1,))
        return in_dtype(xp, none, values.dtype), in_dtype(xp, none, scales.dtype)
    blocks, fine = blocks_of_rows(xp, ends, d)
    z = _transformed(xp, blocks)  # (blocks, W, 16)
    inverse = float(np.float32(1.0) / np.float32(norm))
    wanted = maximum_of(xp, xp.abs(z), 2) * float(np.float32(norm) * np.float32(1.0 / 6.0))
    codes = encode(wanted, E4M3)
    scale = decode(codes, E4M3) * inverse
    factor = xp.where(scale == 0, xp.zeros_like(scale) + _LARGEST, 1.0 / xp.where(scale == 0, 1.0 + scale, scale))
    factor = xp.where(factor > _LARGEST, _LARGEST, factor)
    return _placed(problem, xp, ends, fine, encode(z * factor[..., None], E2M1), codes, specs)


def _placed(
    problem: GluHadamardQuant,
    xp: Any,
    ends: Any,
    fine: Groups,
    codes: Any,
    scales: Any,
    specs: tuple[TensorSpec, ...],
) -> tuple[Any, Any]:
    """Codes (blocks, W, 16) and scales (blocks, W) at their places: for each place its source."""
    m, width = problem.a_tensor.shape[0], problem.width
    whole = xp.int32 if is_jax(xp) else xp.int64
    ends = xp.astype(xp.clip(ends, 0, m), whole)
    begins = xp.concat((xp.zeros_like(ends[:1]), ends[:-1]))
    counts = xp.where(ends > begins, ends - begins, 1)
    each = (ends - begins + 15) // 16
    first = xp.cumulative_sum(each, dtype=whole) - each  # first block of each expert
    where = {"device": codes.device} if "torch" in xp.__name__ else {}

    def owners(size: int, per_row: int) -> tuple[Any, Any]:
        """Of ``size`` places, ``per_row / 16`` of them for a row: the expert, and the place among its own."""
        place = xp.arange(size, dtype=whole, **where)
        limit = ends * width // per_row
        owner = xp.clip(xp.searchsorted(limit, place, side="right"), 0, ends.shape[0] - 1)
        return owner, place - xp.take(begins * width // per_row, owner)

    owner, local = owners(m * width, 1)
    count = xp.take(counts, owner)
    feature, token = local // count, local % count
    block = xp.take(first, owner) + token // 16
    source = (block * width + feature) * 16 + token % 16
    inside = feature < width
    flat = xp.reshape(codes, (-1,))
    found = xp.take(flat, xp.clip(source, 0, flat.shape[0] - 1))
    data = xp.where(inside, found, xp.zeros_like(found))

    owner, local = owners(m * width // 16, 16)
    across = xp.where(xp.take(counts, owner) < 64, 1, xp.take(counts, owner) // 64)
    high = width // 128
    feature = local // (4 * across) % high * 128 + local // (4 * across * high) % 4 * 32 + local // (16 * across * high)
    own = local % across * 4 + local // across % 4
    block = xp.take(first, owner) + own
    inside = (feature < width) & (own < xp.take(each, owner)) & (local < xp.take(ends - begins, owner) * width // 16)
    flat = xp.reshape(scales, (-1,))
    found = xp.take(flat, xp.clip(block * width + feature, 0, flat.shape[0] - 1))
    packed = xp.where(inside, found, xp.zeros_like(found))
    return _pairs(xp, data, specs[0]), from_codes(packed, E4M3)
