"""What the four building blocks of native sparse attention share: padded or packed operands."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.operands import compact, require_groups, require_offsets, statistics_dtype
from cudnn_fe.core.call import physical_order
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, ShapeError
from cudnn_fe.core.require import require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "PACKED",
    "PADDED",
    "SOURCE",
    "check_float32",
    "like_queries",
    "require_pair",
    "require_qkv",
    "row_statistic",
]

PADDED, PACKED = "(B, H, S, D)", "(T, H, D)"
SOURCE = (
    "Yuan et al., Native Sparse Attention (2025), arXiv 2502.11089; names and conventions of cudnn-frontend 1.32's NSA."
)


def require_qkv(q: TensorSpec, k: TensorSpec, v: TensorSpec | None) -> None:
    """Raises ShapeError unless Q, K and V are padded, or all packed, with heads in groups."""
    if q.ndim not in (3, 4):
        raise ShapeError(q.name, got=str(q.shape), wanted=f"{PADDED} or {PACKED}", remedy="reshape the operand")
    words = PADDED if q.ndim == 4 else PACKED
    k.require_rank(q.ndim, words)
    lead = (q.shape[0], k.shape[1], k.shape[2]) if q.ndim == 4 else (k.shape[0], k.shape[1])
    require_shape(k, (*lead, q.shape[-1]), words)
    if v is not None:
        v.require_rank(q.ndim, words)
        require_shape(v, (*lead, v.shape[-1]), words)
    require_groups(q.shape[1], k.shape[1], q.name)


def require_pair(q: TensorSpec, first: TensorSpec | None, second: TensorSpec | None) -> None:
    """Validates the cumulative lengths of packed operands; both are needed there."""
    if first is None or second is None:
        missing = "cum_seqlen_q_tensor" if first is None else "cum_seqlen_k_tensor"
        raise ShapeError(
            missing, got="None", wanted=f"cumulative lengths (B+1,) of {PACKED} operands", remedy="pass both of them"
        )
    require_offsets(first)
    require_offsets(second, first)


def like_queries(name: str, q: TensorSpec, channels: int, kind: DType) -> TensorSpec:
    """An output of Q's shape but for its channels, compact, with Q's order of dims in memory."""
    order = tuple(dim for dim in reversed(physical_order(q)) if dim != q.ndim - 1)
    return compact(name, (*q.shape[:-1], channels), kind, q.device, (q.ndim - 1, *order))


def row_statistic(name: str, q: TensorSpec, *, flat: bool) -> TensorSpec:
    """(B, H, S) for padded operands; (T, H, 1), or (T, H) where ``flat``, for packed ones."""
    shape = q.shape[:-1] if q.ndim == 4 or flat else (*q.shape[:-1], 1)
    return compact(name, shape, statistics_dtype(q), q.device)


def check_float32(**given: Any) -> None:
    """Raises DTypeError unless every named accumulator type is float32."""
    for name, value in given.items():
        if dtype(value, operand=name).name != "float32":
            raise DTypeError(name, got=str(value), wanted="float32", remedy="leave it at its default")
