"""The contracts of sparse attention over listed rows that are keys and values at once: forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.operands import VALUE_CHANNELS, require_lists, require_shared_keys
from cudnn_fe.attention.dsa.sparse_attention.docs import BACKWARD_DOCS, FORWARD_DOCS
from cudnn_fe.attention.operands import compact, require_same_dtype, require_statistic, statistics_dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FORWARD", "SparseAttention", "SparseAttentionBackward"]


@dataclass(frozen=True)
class SparseAttention(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = ("q", "kv", "topk_idxs", "attn_sink", "topk_length")
    optional: ClassVar[frozenset[str]] = frozenset({"attn_sink", "topk_length"})
    kept: ClassVar[frozenset[str]] = frozenset({"attn_sink"})
    output_count: ClassVar[int] = 0

    q: TensorSpec
    kv: TensorSpec
    topk_idxs: TensorSpec
    attn_sink: TensorSpec | None
    topk_length: TensorSpec | None
    indexer_topk: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``indexer_topk``."""
        q, kv, ids, sink, lengths = operands
        assert q is not None
        assert kv is not None
        assert ids is not None
        require_shared_keys(q, kv)
        require_lists(ids, lengths, q.shape[:1], q)
        if sink is not None:
            require_statistic(sink, q.shape[1:2], "(H,)", q)
        first = options["indexer_topk"]
        if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= ids.shape[1]:
            raise OptionError(
                "indexer_topk", got=repr(first), wanted=f"an int in 0..{ids.shape[1]}", remedy="count the first slots"
            )
        return cls(q, kv, ids, sink, lengths, first)

    @property
    def value_channels(self) -> int:
        """Channels of a row that are its value."""
        return min(self.q.shape[2], VALUE_CHANNELS)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The output, and the statistics of each query and head."""
        rows, heads, _ = self.q.shape
        names = ("max_logits", "lse", *(("lse_indexer",) if self.indexer_topk else ()))
        kind = statistics_dtype(self.q)
        return (
            compact("out", (rows, heads, self.value_channels), self.q.dtype, self.device),
            *(compact(name, (rows, heads), kind, self.device) for name in names),
        )

    @property
    def degenerate(self) -> bool:
        """No queries, no rows, or empty lists."""
        return 0 in (*self.q.shape, self.kv.shape[0], self.topk_idxs.shape[1])

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every slot."""
        rows, heads, channels = self.q.shape
        return 2 * rows * heads * self.topk_idxs.shape[1] * (channels + self.value_channels)


@dataclass(frozen=True)
class SparseAttentionBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q",
        "kv",
        "out",
        "dout",
        "lse",
        "attn_sink",
        "topk_idxs",
        "topk_length",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"topk_length"})
    kept: ClassVar[frozenset[str]] = frozenset({"attn_sink", "lse"})
    output_count: ClassVar[int] = 3

    q: TensorSpec
    kv: TensorSpec
    out: TensorSpec
    dout: TensorSpec
    lse: TensorSpec
    attn_sink: TensorSpec
    topk_idxs: TensorSpec
    topk_length: TensorSpec | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call."""
        del options
        q, kv, out, dout, lse, sink, ids, lengths = operands
        assert q is not None
        assert kv is not None
        assert out is not None
        assert dout is not None
        assert lse is not None
        assert sink is not None
        assert ids is not None
        require_shared_keys(q, kv)
        shape = (*q.shape[:2], min(q.shape[2], VALUE_CHANNELS))
        for spec in (out, dout):
            require_shape(spec, shape, "(T, H, Dv)")
            require_rows(spec)
        require_same_dtype(q, out, dout)
        require_same_device(q, out, dout)
        require_statistic(lse, q.shape[:2], "(T, H)", q)
        require_statistic(sink, q.shape[1:2], "(H,)", q)
        require_lists(ids, lengths, q.shape[:1], q)
        return cls(q, kv, out, dout, lse, sink, ids, lengths)

    @property
    def value_channels(self) -> int:
        """Channels of a row that are its value."""
        return self.out.shape[2]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Gradients of the queries, the rows and the sink."""
        return (
            compact("dq", self.q.shape, self.q.dtype, self.device),
            compact("dkv", self.kv.shape, self.q.dtype, self.device),
            compact("d_sink", self.attn_sink.shape, self.attn_sink.dtype, self.device),
        )

    @property
    def degenerate(self) -> bool:
        """No queries, no rows, or empty lists."""
        return 0 in (*self.q.shape, self.kv.shape[0], self.topk_idxs.shape[1])

    @property
    def flops(self) -> int:
        """Five products where the forward has two."""
        rows, heads, channels = self.q.shape
        return 2 * rows * heads * self.topk_idxs.shape[1] * (3 * channels + 2 * self.value_channels)


FORWARD = Op(
    name="dsa_sparse_attention_forward",
    package="cudnn-fe-attention",
    problem=SparseAttention,
    reference="cudnn_fe.attention.dsa.sparse_attention.reference:forward",
    kernels=(),
    scalars=("softmax_scale",),
    results=("out", "max_logits", "lse", "lse_indexer"),
    gradient="cudnn_fe.attention.dsa.sparse_attention.gradient:GRADIENT",
    reference_on_gpu=True,
    **FORWARD_DOCS,
)

BACKWARD = Op(
    name="dsa_sparse_attention_backward",
    package="cudnn-fe-attention",
    problem=SparseAttentionBackward,
    reference="cudnn_fe.attention.dsa.sparse_attention.reference:backward",
    kernels=(),
    scalars=("softmax_scale",),
    results=("dq", "dkv", "d_sink"),
    reference_on_gpu=True,
    **BACKWARD_DOCS,
)
