"""The definition of block-sparse attention in FP8, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import divide, index_range, narrow, round_through, take, wide
from cudnn_fe.attention.block_sparse.reference import visible_keys
from cudnn_fe.attention.pieces import attend
from cudnn_fe.core.arrays import maximum_of

if TYPE_CHECKING:
    from cudnn_fe.attention.block_sparse_fp8.op import BlockSparseAttentionFp8

__all__ = ["forward"]

_LARGEST, _LEAST, _TOKENS, _LIFT = 448.0, 1e-3, 16, 256.0
_CODES, _IO = "float8_e4m3fn", "bfloat16"


def forward(
    problem: BlockSparseAttentionFp8,
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    index: Any,
    nums: Any,
    sizes: Any,
    softmax_scale: float,
) -> tuple[Any]:
    """``O`` of E4M3 products with float32 sums.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        q: Queries (B, Hq, Sq, D).
        k: Keys.
        v: Values.
        index: Listed blocks.
        nums: Blocks of each list, or None.
        sizes: Valid tokens of each key block, or None.
        softmax_scale: Factor of the scores.
    """
    q, k, v = (wide(x) for x in (q, k, v))
    if problem.degenerate:
        output, _, _ = attend(xp, q, k, v, lambda rows: lambda keys: None, softmax_scale, _CODES)
        return (narrow(output, _IO),)
    values, value_scales = _values(xp, v)
    visible = visible_keys(problem, xp, index, nums, sizes)
    rows, keys = _queries(xp, q), _keys(xp, k)
    output, _, _ = attend(xp, rows, keys, values, visible, softmax_scale, _CODES, lift=_LIFT)
    group = q.shape[1] // k.shape[1]
    return (narrow(output * xp.repeat(value_scales, group, axis=1), _IO),)


def _scale(xp: Any, amax: Any) -> Any:
    """``max(amax, 1e-3) / 448``."""
    return divide(xp, xp.maximum(amax, xp.full_like(amax, _LEAST)), _LARGEST)


def _queries(xp: Any, q: Any) -> Any:
    """The values of E4M3 queries with a scale per row."""
    scales = _scale(xp, maximum_of(xp, xp.abs(q), axis=-1)[..., None])
    reciprocal = round_through(1.0 / round_through(scales, _IO), _IO)
    return round_through(round_through(q * reciprocal, _IO), _CODES) * scales


def _keys(xp: Any, k: Any) -> Any:
    """The values of E4M3 keys around their mean, with a scale per 16 tokens."""
    tokens = k.shape[2]
    centred = k - xp.sum(k, axis=2, keepdims=True) / tokens
    rows = maximum_of(xp, xp.abs(centred), axis=-1)
    groups = -(-tokens // _TOKENS)
    # The last group repeats its last token, which no maximum notices.
    filled = take(xp, rows, index_range(xp, groups * _TOKENS, k), 2)
    amax = maximum_of(xp, xp.reshape(filled, (*rows.shape[:2], groups, _TOKENS)), axis=-1)
    scales = xp.repeat(_scale(xp, amax), _TOKENS, axis=2)[:, :, :tokens, None]
    return round_through(centred / scales, _CODES) * scales


def _values(xp: Any, v: Any) -> tuple[Any, Any]:
    """E4M3 values, and their scales (1, H, 1, D)."""
    scales = _scale(xp, maximum_of(xp, maximum_of(xp, xp.abs(v), axis=2), axis=0)[None, :, None])
    return round_through(v * (1.0 / scales), _CODES), scales
