"""The definition of the unfused grouped GEMM, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.grouped.groups import Owners, grouped_product, groups_of, keep, of_rows
from cudnn_fe.grouped.weights import dense_weights

if TYPE_CHECKING:
    from cudnn_fe.grouped.unfused.op import GroupedGemm

__all__ = ["bias_of_rows", "empty", "grouped_gemm", "zeros"]


def zeros(xp: Any, shape: tuple[int, ...], like: Any) -> Any:
    """float32 zeros where ``like`` lives."""
    place = {"device": like.device} if "torch" in xp.__name__ else {}
    return xp.zeros(shape, dtype=xp.float32, **place)


def empty(xp: Any, problem: Any, like: Any) -> tuple[Any, ...]:
    """Zeros for each result of a problem without rows, columns or products."""
    return tuple(astype(zeros(xp, spec.shape, like), spec.dtype.name) for spec in problem.outputs)


def bias_of_rows(xp: Any, groups: Owners, bias: Any) -> Any:
    """(M, N) float32: each row's expert's bias."""
    return of_rows(xp, groups, xp.permute_dims(bias, (1, 0)))


def grouped_gemm(
    problem: GroupedGemm, xp: Any, a: Any, b: Any, offsets: Any, alpha: Any, prob: Any, bias: Any
) -> tuple[Any, Any]:
    """``(D, C)`` in float32 until the end.

    Args:
        problem: The bound problem; names the output dtypes.
        xp: Array namespace of the operands.
        a: (M, K).
        b: (L, N, K), or addresses.
        offsets: (L,) ends.
        alpha: (L,).
        prob: (M,) or None, which is 1.
        bias: (N, L) or None.
    """
    if 0 in problem.extents[:2]:
        d, c = empty(xp, problem, a)
        return d, c
    groups = groups_of(xp, offsets, a.shape[0])
    c = grouped_product(xp, groups, a, dense_weights(problem, xp, b)) * of_rows(xp, groups, alpha)[:, None]
    if bias is None:
        d = c if prob is None else c * prob[:, None]
    else:
        shift = bias_of_rows(xp, groups, bias)
        d = c = c + (shift if prob is None else prob[:, None] * shift)
    d, c = keep(xp, groups, d), keep(xp, groups, c)
    return astype(d, problem.d_dtype.name), astype(c if problem.generate_c else c[:0], problem.c_dtype.name)
