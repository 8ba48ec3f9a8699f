"""The contracts of the gradients of the indexer's KL loss: over listed keys, and over all visible ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.dense import Extents, bind_columns
from cudnn_fe.attention.dsa.indexer_backward.docs import DENSE_DOCS, SPARSE_DOCS
from cudnn_fe.attention.dsa.operands import require_index_lists
from cudnn_fe.attention.operands import (
    FLOATS,
    compact,
    require_flag,
    require_same_dtype,
    require_statistic,
    statistics_dtype,
)
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["DENSE", "SPARSE", "DenseIndexerBackward", "IndexerBackward"]


def _check_loss(loss: TensorSpec, like: TensorSpec) -> None:
    require_dtype(loss, statistics_dtype(like).name)
    require_same_device(like, loss)
    if loss.size != 1:
        require_shape(loss, (1,), "one element")


def _check_weights(weights: TensorSpec, q: TensorSpec) -> None:
    require_shape(weights, q.shape[:-1], "that of index_q without D")
    require_dtype(weights, q.dtype.name, statistics_dtype(q).name)
    require_same_device(q, weights)
    require_rows(weights)


class _Gradients(Problem):
    """What both give: gradients of queries, weights and keys, and of the scores."""

    kept: ClassVar[frozenset[str]] = frozenset()
    output_count: ClassVar[int] = 4

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Gradients like their operands; that of the keys in its own dtype."""
        q, weights, k, score, *_ = self.inputs
        assert q is not None
        assert weights is not None
        assert k is not None
        assert score is not None
        kind = dtype(self.dk_dtype)  # type: ignore[attr-defined]
        return (
            compact("d_index_q", q.shape, q.dtype, self.device),
            compact("d_weights", weights.shape, weights.dtype, self.device),
            compact("d_index_k", k.shape, kind, self.device),
            compact("d_score", score.shape, statistics_dtype(q), self.device),
        )

    @property
    def degenerate(self) -> bool:
        """Nothing to sum over."""
        return any(spec is not None and 0 in spec.shape for spec in self.inputs[:6])


def _keys_dtype(given: Any, k: TensorSpec) -> str:
    return k.dtype.name if given is None else dtype(given, operand="d_index_k").name


def _require_keys_dtype(name: str, q: TensorSpec, k: TensorSpec) -> None:
    allowed = (k.dtype.name, statistics_dtype(q).name)
    require_dtype(compact("d_index_k", k.shape, dtype(name), k.device), *allowed)


@dataclass(frozen=True)
class IndexerBackward(_Gradients):
    """One call over listed keys."""

    operands: ClassVar[tuple[str, ...]] = (
        "index_q",
        "weights",
        "index_k",
        "attn_score",
        "index_score",
        "topk_indices",
        "grad_loss",
    )

    index_q: TensorSpec
    weights: TensorSpec
    index_k: TensorSpec
    attn_score: TensorSpec
    index_score: TensorSpec
    topk_indices: TensorSpec
    grad_loss: TensorSpec
    topk_indices_global: bool
    dk_dtype: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``topk_indices_global`` and ``dk_dtype``."""
        q, weights, k, attn, index, ids, loss = operands
        assert q is not None
        assert weights is not None
        assert k is not None
        assert attn is not None
        assert index is not None
        assert ids is not None
        assert loss is not None
        require_index_lists(q, k, None, ids, None)
        _check_weights(weights, q)
        for score in (attn, index):
            require_statistic(score, ids.shape, "(B, Sq, K)", q)
        _check_loss(loss, q)
        require_flag(options["topk_indices_global"], "topk_indices_global")
        kind = _keys_dtype(options["dk_dtype"], k)
        _require_keys_dtype(kind, q, k)
        return cls(q, weights, k, attn, index, ids, loss, options["topk_indices_global"], kind)

    @property
    def flops(self) -> int:
        """Three products of 2 D for every head and slot."""
        return 6 * self.topk_indices.size * self.index_q.shape[2] * self.index_q.shape[3]


@dataclass(frozen=True)
class DenseIndexerBackward(_Gradients):
    """One call over all visible keys."""

    operands: ClassVar[tuple[str, ...]] = (
        "index_q",
        "weights",
        "index_k",
        "attn_score",
        "attn_l1norm",
        "index_score",
        "index_lse",
        "grad_loss",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "q_causal_offsets",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"cu_seqlens_q", "cu_seqlens_k", "q_causal_offsets"})

    index_q: TensorSpec
    weights: TensorSpec
    index_k: TensorSpec
    attn_score: TensorSpec
    attn_l1norm: TensorSpec
    index_score: TensorSpec
    index_lse: TensorSpec
    grad_loss: TensorSpec
    cu_seqlens_q: TensorSpec | None
    cu_seqlens_k: TensorSpec | None
    q_causal_offsets: TensorSpec | None
    ratio: int
    extents: Extents
    dk_dtype: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``ratio``, ``max_seqlen_q``, ``max_seqlen_k`` and ``dk_dtype``."""
        q, weights, k, attn, norm, index, lse, loss, first, second, causal = operands
        assert q is not None
        assert weights is not None
        assert k is not None
        assert attn is not None
        assert norm is not None
        assert index is not None
        assert lse is not None
        assert loss is not None
        packed = first is not None or second is not None
        words = ("(T, H, D)", "(T, D)") if packed else ("(B, Sq, H, D)", "(B, Sk, D)")
        for spec, layout in zip((q, k), words, strict=True):
            spec.require_rank(len(layout.split(",")), layout)
        lead = k.shape[:1] if packed else (q.shape[0], k.shape[1])
        require_shape(k, (*lead, q.shape[-1]), words[1])
        require_dtype(q, *FLOATS)
        require_same_dtype(q, k)
        require_same_device(q, k)
        for spec in (q, k):
            require_rows(spec)
        _check_weights(weights, q)
        extents = bind_columns(
            q,
            k,
            (first, second),
            causal,
            ratio=options["ratio"],
            max_seqlen_q=options["max_seqlen_q"],
            max_seqlen_k=options["max_seqlen_k"],
        )
        for score in (attn, index):
            layout = "(Tq, max_seqlen_k)" if packed else "(B, Sq, Sk)"
            require_statistic(score, (*extents.lead, extents.width), layout, q)
        for row in (norm, lse):
            require_statistic(row, extents.lead, "(Tq,)" if packed else "(B, Sq)", q)
        _check_loss(loss, q)
        kind = _keys_dtype(options["dk_dtype"], k)
        _require_keys_dtype(kind, q, k)
        return cls(q, weights, k, attn, norm, index, lse, loss, first, second, causal, options["ratio"], extents, kind)

    @property
    def flops(self) -> int:
        """Three products of 2 D for every query, head and key of a sequence as long as the longest."""
        e = self.extents
        return 6 * e.batch * e.rows * e.width * self.index_q.shape[-2] * self.index_q.shape[-1]


SPARSE = Op(
    name="dsa_indexer_backward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=IndexerBackward,
    reference="cudnn_fe.attention.dsa.indexer_backward.reference:sparse",
    kernels=(),
    scalars=("sm_scale", "loss_coeff"),
    results=("d_index_q", "d_weights", "d_index_k", "d_score"),
    reference_on_gpu=True,
    **SPARSE_DOCS,
)

DENSE = Op(
    name="dsa_dense_indexer_backward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=DenseIndexerBackward,
    reference="cudnn_fe.attention.dsa.indexer_backward.reference:dense",
    kernels=(),
    scalars=("sm_scale", "loss_coeff"),
    results=("d_index_q", "d_weights", "d_index_k", "d_score"),
    reference_on_gpu=True,
    **DENSE_DOCS,
)
