"""Sparse attention for training, and the target of its indexer."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import array_api_compat

from cudnn_fe.attention.dsa.operands import require_shared_keys
from cudnn_fe.attention.dsa.sparse_attention import dsa_sparse_attention_forward
from cudnn_fe.attention.dsa.sparse_scores import dsa_sparse_attn_score_forward
from cudnn_fe.attention.operands import softmax_factor
from cudnn_fe.attention.rows import listed
from cudnn_fe.core.errors import OptionError, OptionTypeError
from cudnn_fe.core.frameworks import common_framework
from cudnn_fe.core.require import require_dtype
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["sparse_attention", "sparse_attention_score_recompute"]


def _scale(q: Any, given: Any) -> float:
    if given is None:
        return softmax_factor(q, None)
    if isinstance(given, bool) or not isinstance(given, Real):
        raise OptionTypeError("softmax_scale", got=repr(given), wanted="a real number", remedy="pass a Python float")
    if not math.isfinite(given) or given <= 0:
        raise OptionError("softmax_scale", got=repr(given), wanted="a finite number above 0", remedy="pass e.g. 0.125")
    return float(given)


def _check(q: Any, kv: Any, indices: Any) -> None:
    common_framework(("q", "kv", "indices"), (q, kv, indices))
    require_shared_keys(spec_of(q, "q"), spec_of(kv, "kv"))
    require_dtype(spec_of(indices, "indices"), "int32")


def _constant(x: Any) -> Any:
    """``x``, without a derivative."""
    if hasattr(x, "detach"):
        return x.detach()
    if array_api_compat.is_jax_array(x):
        import jax  # x is its array

        return jax.lax.stop_gradient(x)
    return x


def sparse_attention(
    q: Any,
    kv: Any,
    indices: Any,
    attn_sink: Any = None,
    softmax_scale: float | None = None,
    topk_length: Any = None,
    trusted_compact_metadata: bool = False,
) -> TupleDict:
    """`dsa_sparse_attention_forward` for training: differentiable in q, kv and the sink, through ``out`` alone.

    Args:
        q: Queries (T, H, D).
        kv: Rows (Tkv, D) of the same dtype.
        indices: int32 (T, K): the rows that each query sees; ids that name no row are no slots.
        attn_sink: float32 (H,), or None.
        softmax_scale: Factor of the scores, above 0; None is ``D ** -0.5``.
        topk_length: int32 (T,): slots of each list that count; None is K.
        trusted_compact_metadata: Hint that ids are valid and in front; without effect on results.

    Returns:
        ``out`` (T, H, min(D, 512)), ``max_logits`` and ``lse`` (T, H); the last two carry no derivative.

    Raises:
        FrameworkError, DTypeError, OptionTypeError: TypeErrors: no array, another dtype, a scale or flag that is none.
        ShapeError, DeviceError, OptionError: As the message says.
    """
    if not isinstance(trusted_compact_metadata, bool):
        raise OptionTypeError(
            "trusted_compact_metadata",
            got=repr(trusted_compact_metadata),
            wanted="True or False",
            remedy="pass a Python bool",
        )
    _check(q, kv, indices)
    result = dsa_sparse_attention_forward(
        q, kv, indices, attn_sink=attn_sink, topk_length=topk_length, softmax_scale=_scale(q, softmax_scale)
    )
    return TupleDict(out=result["out"], max_logits=_constant(result["max_logits"]), lse=_constant(result["lse"]))


def sparse_attention_score_recompute(
    q: Any, kv: Any, lse: Any, indices: Any, softmax_scale: float | None = None, topk_length: Any = None
) -> TupleDict:
    """The indexer's target from `sparse_attention`: its probabilities at listed rows, summed over heads, normalised.

    Args:
        q: Queries (T, H, D).
        kv: Rows (Tkv, D).
        lse: float32 (T, H): the forward's log-sum-exp.
        indices: int32 (T, K): the rows that each query sees.
        softmax_scale: Factor of the scores, above 0; None is ``D ** -0.5``.
        topk_length: int32 (T,): slots of each list that count; None is K.

    Returns:
        ``target`` (T, K), float32, 0 at slots that do not count, and ``indices`` with -1 there. Neither carries a
        derivative.

    Raises:
        FrameworkError, DTypeError, ShapeError, DeviceError, OptionError: As the message says.
    """
    _check(q, kv, indices)
    scale = _scale(q, softmax_scale)
    q, kv, lse = (_constant(x) for x in (q, kv, lse))
    lengths = None if topk_length is None else topk_length[None]
    scores = dsa_sparse_attn_score_forward(q[None], kv[None], lse[None], indices[None], scale, topk_length=lengths)
    xp = array_api_compat.array_namespace(indices)
    valid = listed(xp, indices, topk_length, kv.shape[0])
    return TupleDict(target=scores["target"][0], indices=xp.where(valid, indices, xp.full_like(indices, -1)))
