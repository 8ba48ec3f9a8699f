"""The definition of the grouped weight gradient of quantised operands, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.block_scale import dequantize, join_expert_columns, unswizzle_scales
from cudnn_fe.core.codecs import unpack_fp4
from cudnn_fe.grouped.groups import by_expert, groups_of
from cudnn_fe.grouped.unfused.reference import zeros
from cudnn_fe.grouped.wgrad.reference import accumulated, behind_addresses, unravelled

if TYPE_CHECKING:
    from cudnn_fe.core.tensor import TensorSpec
    from cudnn_fe.grouped.wgrad_scaled.op import ScaledWgrad

__all__ = ["scaled_wgrad"]


def scaled_wgrad(
    problem: ScaledWgrad,
    xp: Any,
    a: Any,
    b: Any,
    sfa: Any,
    sfb: Any,
    offsets: Any,
    global_a: Any,
    global_b: Any,
    old: Any,
    pointers: Any,
) -> tuple[Any]:
    """``W[e] = A[:, rows of e] @ B[rows of e]`` of the dequantised operands, plus ``old`` where given.

    Args:
        problem: The bound problem; names the output dtype.
        xp: Array namespace of the operands.
        a: (h, t) codes.
        b: (t, i) codes.
        sfa: Packed scales of A, expert after expert, flat.
        sfb: Packed scales of B.
        offsets: (E,) ends.
        global_a: (E,) or None.
        global_b: (E,) or None.
        old: (E, h, i) to add to, or None.
        pointers: Addresses of the (h, i) results, or None.
    """

    def sums(found: Any) -> Any:
        kind, shape = problem.wgrad_dtype.name, (offsets.shape[0], a.shape[0], b.shape[1])
        if 0 in (*shape, a.shape[1]):
            return astype(zeros(xp, shape, a), kind) if found is None else found
        left = _rows(problem, xp, xp.permute_dims(a, (1, 0)), sfa, offsets, problem.a_tensor.permute((1, 0)))
        right = _rows(problem, xp, b, sfb, offsets, problem.b_tensor)
        total = by_expert(xp, groups_of(xp, offsets, problem.rows), left, right)
        if global_a is not None:
            total = total * (global_a * global_b)[:, None, None]
        return accumulated(total, found, kind)

    if pointers is not None:
        return (behind_addresses(problem, xp, pointers, sums),)
    return (sums(old),)


def _rows(problem: ScaledWgrad, xp: Any, x: Any, scales: Any, offsets: Any, spec: TensorSpec) -> Any:
    """(t, X) float32 of codes (t, X), pairs along t, and their packed scales."""
    codes, pairs = x.view(xp.uint8), problem.format.element.bits == 4
    if problem.ragged:
        ends = offsets // 2 if pairs else offsets
        codes = unravelled(xp, groups_of(xp, ends, codes.shape[0]), ends, codes, spec)
    if pairs:
        codes = unpack_fp4(codes, axis=0)
    plain = _plain_scales(problem, xp, scales, offsets, codes.shape[1])
    return dequantize(codes, plain, problem.format, axis=0)


def _plain_scales(problem: ScaledWgrad, xp: Any, scales: Any, offsets: Any, width: int) -> Any:
    """(t / block, X): the segments of the experts joined, and unpacked."""
    block, t = problem.sf_vec_size, problem.rows
    finer = 32 // block  # atoms of 4 blocks: 128 rows, or 64
    atoms = xp.reshape(scales.view(xp.uint8), (-1, 32, 4, 4))
    joined = join_expert_columns(atoms, offsets * finer, t * finer)
    return xp.permute_dims(unswizzle_scales(joined, width, -(-t // block))[0], (1, 0))
