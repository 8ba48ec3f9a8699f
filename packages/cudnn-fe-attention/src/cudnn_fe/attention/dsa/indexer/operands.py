"""What the indexer's dense scores and its fused top-k share: operands, their checks, and the scores of some queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_fe.attention.arrays import take, wide
from cudnn_fe.attention.dsa.dense import Extents, bind_columns, columns_of, heads_first, indexer_scores
from cudnn_fe.attention.dsa.operands import require_head_ratio
from cudnn_fe.attention.dsa.precision import (
    check_precision,
    dequantized,
    normal_precision,
)
from cudnn_fe.attention.operands import require_positive
from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.require import require_one_of, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["OPERANDS", "OPTIONAL", "bind_indexer", "check_tiles", "score_rows"]

OPERANDS = (
    "q",
    "k",
    "w",
    "q_scale",
    "k_scale",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "cu_seqlens_q_scale_padded",
    "cu_seqlens_k_scale_padded",
    "q_causal_offsets",
)
OPTIONAL = frozenset(OPERANDS[3:])


def check_tiles(m_block_size: Any, n_block_size: Any, q_stage: Any, kv_stage: Any) -> None:
    """Raises OptionError unless the tuning hints are positive ints, with two stages of queries."""
    for name, value in (("m_block_size", m_block_size), ("n_block_size", n_block_size), ("kv_stage", kv_stage)):
        require_positive(value, name)
    require_one_of(q_stage, "q_stage", (2,))


def bind_indexer(
    operands: tuple[TensorSpec | None, ...], *, key_heads: int | None = 1, weighted: bool = True, **options: Any
) -> tuple[str, Extents]:
    """Validates q, k, weights, scales and offsets; returns the precision and the extents.

    ``weighted`` says whether the third operand is a weight, whose type goes with the precision.

    Options: ``ratio``, ``qhead_per_kv_head``, ``precision``, ``sf_vec_size``, ``max_seqlen_q``, ``max_seqlen_k``.
    """
    q, k, w, q_scale, k_scale, first, second, q_padded, k_padded, causal = operands
    assert q is not None
    assert k is not None
    assert w is not None
    precision = normal_precision(options["precision"])
    packed = first is not None or second is not None
    words = ("(T, Hq, D)", "(T, Hkv, D)", "(T, Hq)") if packed else ("(B, Sq, Hq, D)", "(B, Sk, Hkv, D)", "(B, Sq, Hq)")
    for spec, layout in zip((q, k, w), words, strict=True):
        spec.require_rank(len(layout.split(",")), layout)
    heads = k.shape[-2]
    key_heads = key_heads if precision == "bf16" else 1
    if heads != (key_heads or heads) or q.shape[-2] % max(heads, 1):
        raise ShapeError(
            k.name,
            got=f"{heads} key heads for {q.shape[-2]} query heads",
            wanted="one key head" if key_heads else "a divisor of the query heads",
            remedy=f"lay keys out as {words[1]}",
        )
    lead = k.shape[:1] if packed else (q.shape[0], k.shape[1])
    require_shape(k, (*lead, heads, q.shape[-1]), words[1])
    require_shape(w, q.shape[:-1], words[2])
    require_head_ratio(options["qhead_per_kv_head"], q.shape[-2], heads)
    check_precision(
        precision, q, k, w if weighted else None, (q_scale, k_scale), (q_padded, k_padded), options["sf_vec_size"]
    )
    require_same_device(q, k, w)
    for spec in (q, k, w):
        require_rows(spec)
    extents = bind_columns(
        q,
        k,
        (first, second),
        causal,
        ratio=options["ratio"],
        max_seqlen_q=options["max_seqlen_q"],
        max_seqlen_k=options["max_seqlen_k"],
    )
    return precision, extents


def score_rows(
    problem: Any, xp: Any, operands: tuple[Any, ...], sm_scale: float
) -> tuple[Any, Any, Callable[[Any], tuple[Any, Any]]]:
    """The queries, what they see, and a function of query indices (M,): scores (batch, M, width), -inf where hidden.

    The function also says which columns are visible.
    """
    q, k, w, q_scale, k_scale, first, second, q_padded, k_padded, causal = operands
    precision, factor = problem.precision, wide(w)
    if precision == "fp8" and problem.inputs[2].dtype.name != "float32":
        factor = factor * q_scale * sm_scale
    after = 1.0 if precision == "fp8" else sm_scale
    q = heads_first(xp, dequantized(precision, xp, q, q_scale, first, q_padded))
    k = heads_first(xp, dequantized(precision, xp, k, k_scale, second, k_padded))
    factor = heads_first(xp, factor[..., None])[..., 0]
    columns = columns_of(xp, problem.extents, problem.ratio, q, first, second, causal)

    def of_queries(at: Any) -> tuple[Any, Any]:
        s = after * indexer_scores(xp, take(xp, q, at, 2), k, take(xp, factor, at, 2))
        if precision == "fp8":
            s = s * heads_first(xp, k_scale[..., None])[:, 0, None, :, 0]
        s, seen = columns.local(xp, s, at)
        return xp.where(seen, s, xp.full_like(s, float("-inf"))), seen

    return q, columns, of_queries
