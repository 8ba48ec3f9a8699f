"""The definition of the FP4 grouped GEMM with an activation that measures its Hadamard transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype, cast, hadamard, matmul, maximum_of, rounded
from cudnn_fe.grouped.groups import groups_of, keep, packed_rows
from cudnn_fe.grouped.scaled.pieces import ends_of, largest, largest_block, nothing
from cudnn_fe.grouped.scaled.reference import activated, pre_activation

if TYPE_CHECKING:
    from cudnn_fe.grouped.glu_hadamard.op import GluHadamard

__all__ = ["blocks_of_rows", "glu_hadamard"]

BLOCK = 16


def glu_hadamard(
    problem: GluHadamard,
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
    matrix: Any,
    *numbers: float,
) -> tuple[Any, ...]:
    """``(C, D, amax, amax of H D / 4)``, float32 until the end.

    Args:
        problem: The bound problem; names activation and dtypes.
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
        matrix: (16, 16) in place of the Hadamard matrix, or None.
        *numbers: Those of a gated activation.
    """
    del norm
    if 0 in problem.extents[:2]:
        return nothing(problem, xp, a)
    ends = ends_of(problem, xp, offsets)
    groups = groups_of(xp, ends, a.shape[0])
    x = pre_activation(problem, xp, groups, (a, b, sfa, sfb), alpha, prob, bias, row_scale)
    y = keep(xp, groups, activated(problem, xp, x, prob, *numbers))
    d = cast(y, problem.d_dtype)
    blocks, fine = blocks_of_rows(xp, ends, rounded(astype(d, "float32"), "bfloat16"))
    if matrix is None:
        z = hadamard(xp, blocks)
    else:
        z = matmul(xp, blocks, xp.permute_dims(rounded(astype(matrix, "float32"), "bfloat16"), (1, 0)))
    most = largest_block(xp, fine, maximum_of(xp, maximum_of(xp, xp.abs(z), 2), 1), 0.0)
    return (
        cast(x, problem.c_dtype or "bfloat16"),
        d,
        largest(xp, groups, y, 0.0)[:, None],
        (0.25 * most)[:, None],
    )


def blocks_of_rows(xp: Any, ends: Any, x: Any) -> tuple[Any, Any]:
    """(blocks, X, 16): each expert's rows in blocks of 16, zeros at the end; and where they come from."""
    fine = groups_of(xp, ends, x.shape[0], BLOCK)
    return xp.permute_dims(packed_rows(xp, fine, x), (0, 2, 1)), fine
