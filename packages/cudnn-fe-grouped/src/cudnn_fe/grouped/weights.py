"""The experts' weights as one array, for references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.dtypes import DType
from cudnn_fe.grouped.addresses import gather_bytes

if TYPE_CHECKING:
    from cudnn_fe.grouped.operands import GroupedRows

__all__ = ["dense_weights", "in_dtype"]


def dense_weights(problem: GroupedRows, xp: Any, b: Any) -> Any:
    """(L, N, K) of dense weights, or of those that the addresses ``b`` name."""
    if not problem.discrete:
        return b
    _, n, _, count = problem.extents
    k, kind = problem.a_tensor.shape[1], problem.a_tensor.dtype  # FP4 pairs are counted in bytes
    raw = in_dtype(xp, gather_bytes(xp, b, n * k * kind.itemsize), kind)
    if problem.n_major:
        return xp.permute_dims(xp.reshape(raw, (count, k, n)), (0, 2, 1))
    return xp.reshape(raw, (count, n, k))


def in_dtype(xp: Any, raw: Any, kind: DType) -> Any:
    """uint8 bytes (L, nbytes) seen as elements of another type."""
    if "torch" in xp.__name__:
        return raw.view(getattr(xp, kind.torch))
    import ml_dtypes

    return raw.view(getattr(ml_dtypes, kind.name, kind.name))
