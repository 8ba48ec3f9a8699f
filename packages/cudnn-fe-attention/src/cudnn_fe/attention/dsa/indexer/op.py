"""The contracts of the indexer: dense scores, and the top-k of each query without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.dense import Extents
from cudnn_fe.attention.dsa.indexer.docs import SCORES_DOCS, TOP_K_DOCS
from cudnn_fe.attention.dsa.indexer.operands import OPERANDS, OPTIONAL, bind_indexer
from cudnn_fe.attention.dsa.precision import channels_of
from cudnn_fe.attention.dsa.top_k.op import require_top_k
from cudnn_fe.attention.operands import compact, require_flag, statistics_dtype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "TOP_K", "IndexerForward", "IndexerProblem", "IndexerTopKForward"]


@dataclass(frozen=True)
class IndexerProblem(Problem):
    """What one call of either computes scores from."""

    operands: ClassVar[tuple[str, ...]] = OPERANDS
    optional: ClassVar[frozenset[str]] = OPTIONAL
    output_count: ClassVar[int] = 0

    q: TensorSpec
    k: TensorSpec
    w: TensorSpec
    q_scale: TensorSpec | None
    k_scale: TensorSpec | None
    cu_seqlens_q: TensorSpec | None
    cu_seqlens_k: TensorSpec | None
    cu_seqlens_q_scale_padded: TensorSpec | None
    cu_seqlens_k_scale_padded: TensorSpec | None
    q_causal_offsets: TensorSpec | None
    ratio: int
    precision: str
    extents: Extents
    return_lse: bool

    @property
    def degenerate(self) -> bool:
        """No queries, no keys, or no channels."""
        return 0 in (*self.q.shape, *self.k.shape, self.extents.width)

    @property
    def flops(self) -> int:
        """2 D for every query, head and key of a sequence as long as the longest."""
        e = self.extents
        return 2 * e.batch * e.rows * e.width * self.q.shape[-2] * channels_of(self.q, self.precision)


@dataclass(frozen=True)
class IndexerForward(IndexerProblem):
    """One call for dense scores."""

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `dsa_indexer_forward`."""
        require_flag(options["return_lse"], "return_lse")
        precision, extents = bind_indexer(operands, **options)
        return cls(*operands, options["ratio"], precision, extents, options["return_lse"])  # type: ignore[arg-type, call-arg]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The scores, and their log-sum-exp where asked for."""
        kind, lead = statistics_dtype(self.q), self.extents.lead
        scores = compact("scores", (*lead, self.extents.width), kind, self.device)
        return (scores, compact("lse", lead, kind, self.device)) if self.return_lse else (scores,)


@dataclass(frozen=True)
class IndexerTopKForward(IndexerProblem):
    """One call for the best keys."""

    top_k: int
    topk_indices_global: bool
    return_softmax: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `dsa_indexer_fused_top_k_forward`."""
        names = ("topk_indices_global", "return_softmax")
        for name in (*names, "return_lse", "deterministic"):
            require_flag(options[name], name)
        require_top_k(options["top_k"])
        precision, extents = bind_indexer(operands, **options)
        more = options["return_lse"], options["top_k"], *(options[name] for name in names)
        return cls(*operands, options["ratio"], precision, extents, *more)  # type: ignore[arg-type, call-arg]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Ids, scores, their softmax, and the log-sum-exp of all scores, as far as asked for."""
        kind, lead = statistics_dtype(self.q), self.extents.lead
        shape = (*lead, self.top_k)
        results = [compact("indices", shape, dtype("int32"), self.device), compact("logits", shape, kind, self.device)]
        if self.return_softmax:
            results.append(compact("softmax", shape, kind, self.device))
        if self.return_lse:
            results.append(compact("lse", lead, kind, self.device))
        return tuple(results)


FORWARD = Op(
    name="dsa_indexer_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=IndexerForward,
    reference="cudnn_fe.attention.dsa.indexer.reference:dense_scores",
    kernels=(),
    scalars=("sm_scale",),
    results=("scores", "lse"),
    reference_on_gpu=True,
    **SCORES_DOCS,
)

TOP_K = Op(
    name="dsa_indexer_fused_top_k_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=IndexerTopKForward,
    reference="cudnn_fe.attention.dsa.indexer.reference:fused_top_k",
    kernels=(),
    scalars=("sm_scale",),
    results=("indices", "logits", "softmax", "lse"),
    reference_on_gpu=True,
    **TOP_K_DOCS,
)
