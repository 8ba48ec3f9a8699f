"""The contracts of the probabilities at listed keys: the indexer's, and those that attention had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.operands import SOURCE, WIDE_INDICES, require_head_ratio, require_index_lists
from cudnn_fe.attention.operands import FLOATS, STATISTICS, compact, require_flag, require_statistic, statistics_dtype
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["ATTENTION", "INDEXER", "SparseAttnScore", "SparseIndexerScore"]


class _Listed(Problem):
    """What both share: queries first, keys second, lists fourth."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """A probability per slot."""
        q, _, _, ids, _ = self.inputs
        assert q is not None
        assert ids is not None
        return (compact(self._result, ids.shape, statistics_dtype(q), self.device),)

    _result: ClassVar[str] = "predict"

    @property
    def degenerate(self) -> bool:
        """No queries, no keys, or empty lists."""
        return any(spec is not None and 0 in spec.shape for spec in self.inputs)

    @property
    def flops(self) -> int:
        """2 D for every head and slot."""
        q, _, _, ids, _ = self.inputs
        assert q is not None
        assert ids is not None
        return 2 * ids.size * q.shape[2] * q.shape[3]


@dataclass(frozen=True)
class SparseIndexerScore(_Listed):
    """One call for the indexer's probabilities."""

    operands: ClassVar[tuple[str, ...]] = ("q_indexer", "k_indexer", "weights", "topk_indices", "topk_length")
    optional: ClassVar[frozenset[str]] = frozenset({"topk_length"})

    q_indexer: TensorSpec
    k_indexer: TensorSpec
    weights: TensorSpec
    topk_indices: TensorSpec
    topk_length: TensorSpec | None
    topk_indices_global: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``qhead_per_kv_head`` and ``topk_indices_global``."""
        q, k, weights, ids, lengths = operands
        assert q is not None
        assert k is not None
        assert weights is not None
        assert ids is not None
        require_index_lists(q, k, weights, ids, lengths)
        require_head_ratio(options["qhead_per_kv_head"], q.shape[2])
        require_flag(options["topk_indices_global"], "topk_indices_global")
        return cls(q, k, weights, ids, lengths, options["topk_indices_global"])


@dataclass(frozen=True)
class SparseAttnScore(_Listed):
    """One call for attention's probabilities."""

    operands: ClassVar[tuple[str, ...]] = ("q_attn", "k_attn", "lse", "topk_indices", "topk_length")
    optional: ClassVar[frozenset[str]] = frozenset({"topk_length"})
    kept: ClassVar[frozenset[str]] = frozenset({"lse"})
    _result: ClassVar[str] = "target"

    q_attn: TensorSpec
    k_attn: TensorSpec
    lse: TensorSpec
    topk_indices: TensorSpec
    topk_length: TensorSpec | None
    topk_indices_global: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``qhead_per_kv_head`` and ``topk_indices_global``."""
        q, k, lse, ids, lengths = operands
        assert q is not None
        assert k is not None
        assert lse is not None
        assert ids is not None
        require_index_lists(q, k, None, ids, lengths)
        require_statistic(lse, q.shape[:3], "(B, Sq, H)", q)
        require_head_ratio(options["qhead_per_kv_head"], q.shape[2])
        require_flag(options["topk_indices_global"], "topk_indices_global")
        return cls(q, k, lse, ids, lengths, options["topk_indices_global"])


def _operands(queries: str, keys: str) -> tuple[TensorRule, TensorRule]:
    return (
        TensorRule(queries, "(B, Sq, H, D)", "channels contiguous", FLOATS, "queries"),
        TensorRule(keys, "(B, Sk, D)", "channels contiguous", FLOATS, "keys, which all heads share"),
    )


_LISTS = (
    TensorRule("topk_indices", "(B, Sq, K)", "any strides", WIDE_INDICES, "keys of each query; negative: no slot"),
    TensorRule("topk_length", "(B, Sq)", "any strides", WIDE_INDICES, "slots that count, or None for all"),
)
_NOTES = (
    "A slot counts if its id names a key and it lies within the list's length; ids count the keys of the batch, or of "
    "all batches (`b * Sk + c`) with `topk_indices_global`.",
)
_INPUTS = """\
import numpy as np
from cudnn_fe.attention import {name}

rng = np.random.default_rng(0)
q, k = rng.standard_normal((1, 2, 4, 16), dtype=np.float32), rng.standard_normal((1, 6, 16), dtype=np.float32)
ids = np.asarray([[[0, 3, -1], [-1, -1, -1]]], np.int32)
"""

INDEXER = Op(
    name="dsa_sparse_indexer_score_forward",
    package="cudnn-fe-attention",
    problem=SparseIndexerScore,
    reference="cudnn_fe.attention.dsa.sparse_scores.reference:indexer",
    kernels=(),
    summary="The lightning indexer's probabilities over each query's listed keys.",
    formula=r"p_j = \mathrm{softmax}_j \sum_h \max(q_h \cdot k_{i(j)}, 0)\, w_h",
    tensors=(
        *_operands("q_indexer", "k_indexer"),
        TensorRule("weights", "(B, Sq, H)", "heads contiguous", FLOATS, "weights of the heads"),
        *_LISTS,
        TensorRule("predict", "(B, Sq, K)", "compact", STATISTICS, "probabilities; 0 at slots that do not count"),
    ),
    example=_INPUTS.format(name="dsa_sparse_indexer_score_forward")
    + """\
w = np.ones((1, 2, 4), np.float32)
predict = dsa_sparse_indexer_score_forward(q, k, w, ids)["predict"]
s = np.maximum(q[0, 0] @ k[0, [0, 3]].T, 0).sum(0)
np.testing.assert_allclose(predict[0, 0, :2], np.exp(s) / np.exp(s).sum(), rtol=1e-4)
assert not predict[0, 0, 2] and not predict[0, 1].any()
""",
    source=SOURCE,
    notes=(*_NOTES, "A query without slots gives zeros. The scores' factor is 1."),
    results=("predict",),
    reference_on_gpu=True,
)

ATTENTION = Op(
    name="dsa_sparse_attn_score_forward",
    package="cudnn-fe-attention",
    problem=SparseAttnScore,
    reference="cudnn_fe.attention.dsa.sparse_scores.reference:attention",
    kernels=(),
    summary="Attention's probabilities over each query's listed keys, summed over heads and normalised.",
    formula=r"T_j = \sum_h e^{\alpha\, q_h \cdot k_{i(j)} - \mathrm{LSE}_h}, \qquad t_j = T_j / \sum_l T_l",
    tensors=(
        *_operands("q_attn", "k_attn"),
        TensorRule("lse", "(B, Sq, H)", "any strides", STATISTICS, "natural log-sum-exp of attention, without a sink"),
        *_LISTS,
        TensorRule("target", "(B, Sq, K)", "compact", STATISTICS, "probabilities; 0 at slots that do not count"),
    ),
    example=_INPUTS.format(name="dsa_sparse_attn_score_forward")
    + """\
lse = np.zeros((1, 2, 4), np.float32)
target = dsa_sparse_attn_score_forward(q, k, lse, ids, 0.25)["target"]
t = np.exp(q[0, 0] @ k[0, [0, 3]].T / 4).sum(0)
np.testing.assert_allclose(target[0, 0, :2], t / t.sum(), rtol=1e-4)
""",
    source=SOURCE,
    notes=(*_NOTES, "A query whose sum is at most 1e-10 gives zeros."),
    scalars=("softmax_scale",),
    results=("target",),
    reference_on_gpu=True,
)
