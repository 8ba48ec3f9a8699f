"""The contracts of dense scores with their denominators: the indexer's, and attention's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.dense import Extents
from cudnn_fe.attention.dsa.indexer.docs import CAUSAL_NOTE, inputs
from cudnn_fe.attention.dsa.indexer.operands import OPERANDS, OPTIONAL, bind_indexer
from cudnn_fe.attention.dsa.operands import SOURCE
from cudnn_fe.attention.dsa.precision import channels_of, normal_precision
from cudnn_fe.attention.operands import STATISTICS, compact, require_statistic, statistics_dtype
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["ATTENTION", "INDEXER", "DenseAttnScore", "DenseIndexerScore", "DenseScore"]


@dataclass(frozen=True)
class DenseScore(Problem):
    """What both share."""

    output_count: ClassVar[int] = 2
    optional: ClassVar[frozenset[str]] = OPTIONAL

    q: TensorSpec
    k: TensorSpec

    @property
    def _extents(self) -> Extents:
        extents: Extents = self.extents  # type: ignore[attr-defined]
        return extents

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The scores and their denominators."""
        kind, lead = statistics_dtype(self.q), self._extents.lead
        return (
            compact("out", (*lead, self._extents.width), kind, self.device),
            compact("denom", lead, kind, self.device),
        )

    @property
    def degenerate(self) -> bool:
        """No queries, no keys, or no channels."""
        return 0 in (*self.q.shape, *self.k.shape, self._extents.width)

    @property
    def flops(self) -> int:
        """2 D for every query, head and key of a sequence as long as the longest."""
        e, precision = self._extents, str(self.precision)  # type: ignore[attr-defined]
        return 2 * e.batch * e.rows * e.width * self.q.shape[-2] * channels_of(self.q, precision)


@dataclass(frozen=True)
class DenseIndexerScore(DenseScore):
    """One call for the indexer's scores."""

    operands: ClassVar[tuple[str, ...]] = ("q", "k", "weights", *OPERANDS[3:])

    weights: TensorSpec
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

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `dsa_dense_indexer_score_forward`."""
        normal_precision(options["precision"], ("bf16", "mxfp8", "mxfp4"))
        precision, extents = bind_indexer(operands, key_heads=None, **options)
        return cls(*operands, options["ratio"], precision, extents)  # type: ignore[arg-type, call-arg]


@dataclass(frozen=True)
class DenseAttnScore(DenseScore):
    """One call for attention's probabilities."""

    operands: ClassVar[tuple[str, ...]] = ("q", "k", "lse", *OPERANDS[3:])

    lse: TensorSpec
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

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `dsa_dense_attn_score_forward`."""
        normal_precision(options["precision"], ("bf16", "mxfp8"))
        precision, extents = bind_indexer(operands, key_heads=None, weighted=False, **options)
        q, _, lse, *_ = operands
        assert q is not None
        assert lse is not None
        require_statistic(lse, q.shape[:-1], "(T, Hq)" if extents.packed else "(B, Sq, Hq)", q)
        return cls(*operands, options["ratio"], precision, extents)  # type: ignore[arg-type, call-arg]


_RESULTS = (
    TensorRule("out", "(B, Sq, Sk) or (Tq, max_seqlen_k)", "compact", STATISTICS, "minus infinity where hidden"),
    TensorRule("denom", "(B, Sq) or (Tq,)", "compact", STATISTICS, "the denominator"),
)
_INPUTS = """\
import numpy as np
from cudnn_fe.attention import {name}

rng = np.random.default_rng(0)
q, k = rng.standard_normal((1, 8, 4, 16), dtype=np.float32), rng.standard_normal((1, 2, 1, 16), dtype=np.float32)
"""
_BEYOND = (
    "Accepted beyond the vendor: block scales on every device and with any number of heads, float32 and float64, CPU, "
    "NumPy and JAX."
)

INDEXER = Op(
    name="dsa_dense_indexer_score_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=DenseIndexerScore,
    reference="cudnn_fe.attention.dsa.dense_scores.reference:indexer",
    kernels=(),
    summary="The lightning indexer's score of every key that a query may see, and their log-sum-exp.",
    formula=r"S_{rc} = \alpha \sum_h \max(q_{rh} \cdot k_c, 0)\, w_{rh}, \qquad d_r = \ln \sum_c e^{S_{rc}}",
    tensors=(*inputs("Hkv", "weights"), *_RESULTS),
    example=_INPUTS.format(name="dsa_dense_indexer_score_forward")
    + """\
out, denom = dsa_dense_indexer_score_forward(q, k, np.ones((1, 8, 4), np.float32), ratio=4)
np.testing.assert_allclose(denom[0, 7], np.log(np.exp(out[0, 7]).sum()), rtol=1e-4)
assert np.isneginf(out[0, :3]).all() and np.isneginf(denom[0, :3]).all()
""",
    source=SOURCE,
    notes=(
        CAUSAL_NOTE,
        "The denominator of a query that sees no key is minus infinity.",
        "Without `max_seqlen_q` and `max_seqlen_k` the longest packed sequences are read on the host.",
        _BEYOND,
    ),
    scalars=("sm_scale",),
    results=("out", "denom"),
    reference_on_gpu=True,
)

ATTENTION = Op(
    name="dsa_dense_attn_score_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=DenseAttnScore,
    reference="cudnn_fe.attention.dsa.dense_scores.reference:attention",
    kernels=(),
    summary="Attention's probability of every key that a query may see, summed over heads, and the row's sum.",
    formula=r"T_{rc} = \sum_h e^{\alpha\, q_{rh} \cdot k_c - \mathrm{LSE}_{rh}}, \qquad d_r = \sum_c T_{rc}",
    tensors=(
        *inputs("Hkv")[:2],
        TensorRule("lse", "(B, Sq, Hq) or (Tq, Hq)", "any strides", STATISTICS, "natural log-sum-exp of attention"),
        *inputs("Hkv")[3:],
        *_RESULTS,
    ),
    example=_INPUTS.format(name="dsa_dense_attn_score_forward")
    + """\
out, denom = dsa_dense_attn_score_forward(q, k, np.zeros((1, 8, 4), np.float32), 0.25, ratio=4)
np.testing.assert_allclose(denom[0, 7], out[0, 7].sum(), rtol=1e-5)
assert np.isneginf(out[0, :3]).all() and not denom[0, :3].any()
""",
    source=SOURCE,
    notes=(
        CAUSAL_NOTE,
        "Hidden keys are minus infinity in `out` and count nothing in `denom`, which is 0 where no key is seen.",
        "Without `max_seqlen_q` and `max_seqlen_k` the longest packed sequences are read on the host.",
        _BEYOND,
    ),
    scalars=("softmax_scale",),
    results=("out", "denom"),
    reference_on_gpu=True,
)
