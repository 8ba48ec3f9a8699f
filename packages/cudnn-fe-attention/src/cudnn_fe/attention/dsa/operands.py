"""Rules that the contracts of DeepSeek sparse attention share."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.operands import FLOATS, require_same_dtype
from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.require import require_dtype, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "INDICES",
    "SOURCE",
    "VALUE_CHANNELS",
    "WIDE_INDICES",
    "require_head_ratio",
    "require_index_lists",
    "require_lists",
    "require_shared_keys",
]

INDICES = ("int32",)
WIDE_INDICES = ("int32", "int64")
VALUE_CHANNELS = 512  # channels of a shared key-value row that are its value; those after them are the key's alone
SOURCE = (
    "DeepSeek-AI, DeepSeek-V3.2 (2025): sparse attention with a lightning indexer; conventions of cudnn-frontend "
    "1.32's DSA."
)


def require_shared_keys(q: TensorSpec, kv: TensorSpec) -> None:
    """Validates queries (T, H, D) and rows (Tkv, D) that are keys and values at once."""
    q.require_rank(3, "(T, H, D)")
    kv.require_rank(2, "(Tkv, D)")
    require_shape(kv, (kv.shape[0], q.shape[2]), "(Tkv, D)")
    require_dtype(q, *FLOATS)
    require_same_dtype(q, kv)
    require_same_device(q, kv)
    require_rows(q)
    require_rows(kv)


def require_lists(
    ids: TensorSpec,
    lengths: TensorSpec | None,
    lead: tuple[int, ...],
    like: TensorSpec,
    allowed: tuple[str, ...] = INDICES,
) -> None:
    """Validates lists of ids (*lead, K) and their lengths (*lead)."""
    words = "(T, K)" if len(lead) == 1 else "(B, Sq, K)"
    require_dtype(ids, *allowed)
    ids.require_rank(len(lead) + 1, words)
    require_shape(ids, (*lead, ids.shape[-1]), words)
    require_same_device(like, ids, lengths)
    if lengths is not None:
        require_dtype(lengths, *allowed)
        require_shape(lengths, lead, words.replace(", K", ""))


def require_index_lists(
    q: TensorSpec, k: TensorSpec, weights: TensorSpec | None, ids: TensorSpec, lengths: TensorSpec | None
) -> None:
    """Validates (B, Sq, H, D) queries, (B, Sk, D) keys, weights of the heads, and (B, Sq, K) lists."""
    q.require_rank(4, "(B, Sq, H, D)")
    k.require_rank(3, "(B, Sk, D)")
    require_shape(k, (q.shape[0], k.shape[1], q.shape[3]), "(B, Sk, D)")
    require_dtype(q, *FLOATS)
    require_same_dtype(q, k)
    require_same_device(q, k, weights)
    for spec in (q, k):
        require_rows(spec)
    if weights is not None:
        require_shape(weights, q.shape[:3], "(B, Sq, H)")
        require_same_dtype(q, weights)
        require_rows(weights)
    require_lists(ids, lengths, q.shape[:2], q, WIDE_INDICES)


def require_head_ratio(given: Any, heads: int, key_heads: int = 1) -> None:
    """Raises ShapeError unless ``qhead_per_kv_head``, where it is given, says what the shapes say."""
    if given is not None and (not isinstance(given, int) or given * key_heads != heads):
        raise ShapeError(
            "qhead_per_kv_head",
            got=repr(given),
            wanted=f"{heads} query heads / {key_heads} key heads",
            remedy="leave it unset",
        )
