"""The contracts of block-sparse attention: forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.block_sparse.docs import (
    BACKWARD_EXAMPLE,
    BACKWARD_NOTES,
    BACKWARD_TENSORS,
    FORWARD_EXAMPLE,
    FORWARD_NOTES,
    FORWARD_TENSORS,
    SOURCE,
)
from cudnn_fe.attention.block_sparse.operands import (
    BlockLists,
    Extents,
    Layout,
    bind_lists,
    extents_of,
    physical,
)
from cudnn_fe.attention.operands import FLOATS, compact, require_same_dtype, require_streamable, statistics_dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FORWARD", "BlockSparseAttention", "BlockSparseAttentionBackward"]


def _check_hints(splits: Any, use_clc: Any, pack_gqa: Any) -> None:
    whole = isinstance(splits, int) and not isinstance(splits, bool)
    if splits != "auto" and not (whole and 1 <= splits <= 256):
        raise OptionError("kv_splits", got=repr(splits), wanted='1..256 or "auto"', remedy="leave it at 1: a hint")
    require_one_of(use_clc, "use_clc", (None, True, False))
    require_one_of(pack_gqa, "pack_gqa", (None, True, False))


@dataclass(frozen=True)
class BlockSparseAttention(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "q2k_block_index",
        "q2k_block_nums",
        "block_sizes",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"q2k_block_nums", "block_sizes"})
    output_count: ClassVar[int] = 2

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    q2k_block_index: TensorSpec
    q2k_block_nums: TensorSpec | None
    block_sizes: TensorSpec | None
    layout: Layout
    lists: BlockLists

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `block_sparse_attention_forward`."""
        q, k, v, index, nums, sizes = operands
        assert q is not None
        assert k is not None
        assert v is not None
        assert index is not None
        extents = extents_of(q, k, v, options["layout"])
        require_streamable(FLOATS, q, k, v)
        require_same_device(q, index)
        _check_hints(options["kv_splits"], options["use_clc"], options["pack_gqa"])
        require_one_of(options["allow_empty_block_nums"], "allow_empty_block_nums", (True, False))
        lists = bind_lists(extents, index, nums, sizes, **options)
        return cls(q, k, v, index, nums, sizes, options["layout"], lists)

    @property
    def extents(self) -> Extents:
        """The call's extents."""
        return extents_of(self.q_tensor, self.k_tensor, self.v_tensor, self.layout)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O in the layout of Q, and the log-sum-exp (B, Hq, Sq)."""
        e = self.extents
        shape = physical((e.batch, e.query_heads, e.queries, e.value_channels), self.layout)
        return (
            compact("o_tensor", shape, self.q_tensor.dtype, self.device),
            compact("lse_tensor", (e.batch, e.query_heads, e.queries), statistics_dtype(self.q_tensor), self.device),
        )

    @property
    def degenerate(self) -> bool:
        """No queries or no keys."""
        e = self.extents
        return 0 in (e.batch, e.query_heads, e.queries, e.keys, e.channels, e.value_channels)

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every listed query and key, as far as the lists' capacity says."""
        e = self.extents
        listed = self.q2k_block_index.shape[3] if self.lists.count is None else self.lists.count
        keys = min(listed * self.lists.block, e.keys)
        return 2 * e.batch * e.query_heads * e.queries * keys * (e.channels + e.value_channels)


@dataclass(frozen=True)
class BlockSparseAttentionBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "do_tensor",
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "o_tensor",
        "lse_tensor",
        "q2k_block_index",
        "q2k_block_nums",
        "block_sizes",
        "dlse_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"q2k_block_nums", "block_sizes", "dlse_tensor"})
    kept: ClassVar[frozenset[str]] = frozenset({"lse_tensor", "dlse_tensor"})
    output_count: ClassVar[int] = 3

    do_tensor: TensorSpec
    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    o_tensor: TensorSpec
    lse_tensor: TensorSpec
    q2k_block_index: TensorSpec
    q2k_block_nums: TensorSpec | None
    block_sizes: TensorSpec | None
    dlse_tensor: TensorSpec | None
    layout: Layout
    lists: BlockLists

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `block_sparse_attention_backward`."""
        do, q, k, v, o, lse, index, nums, sizes, dlse = operands
        assert do is not None
        assert q is not None
        assert k is not None
        assert v is not None
        assert o is not None
        assert lse is not None
        assert index is not None
        extents = extents_of(q, k, v, options["layout"])
        require_streamable(FLOATS, q, k, v)
        shape = physical(
            (extents.batch, extents.query_heads, extents.queries, extents.value_channels), options["layout"]
        )
        for spec in (do, o):
            require_shape(spec, shape, "the shape of the output")
            require_rows(spec)
        require_same_dtype(q, do, o)
        for statistic in (lse, dlse):
            if statistic is not None:
                require_dtype(statistic, statistics_dtype(q).name)
                require_shape(statistic, (extents.batch, extents.query_heads, extents.queries), "(B, Hq, Sq)")
        require_same_device(q, do, o, lse, dlse, index)
        bucket = options["bucket_size_blocks"]
        if bucket is not None and (isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 1):
            raise OptionError(
                "bucket_size_blocks",
                got=repr(bucket),
                wanted="an int above 0, or None",
                remedy="leave it unset: a hint",
            )
        lists = bind_lists(extents, index, nums, sizes, **options)
        return cls(do, q, k, v, o, lse, index, nums, sizes, dlse, options["layout"], lists)

    @property
    def extents(self) -> Extents:
        """The call's extents."""
        return extents_of(self.q_tensor, self.k_tensor, self.v_tensor, self.layout)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dQ, dK, dV, compact, with the shapes of Q, K and V."""
        pairs = (("dq_tensor", self.q_tensor), ("dk_tensor", self.k_tensor), ("dv_tensor", self.v_tensor))
        return tuple(compact(name, spec.shape, spec.dtype, self.device) for name, spec in pairs)

    @property
    def degenerate(self) -> bool:
        """No queries or no keys."""
        e = self.extents
        return 0 in (e.batch, e.query_heads, e.queries, e.keys, e.channels, e.value_channels)

    @property
    def flops(self) -> int:
        """Five products where the forward has two."""
        e = self.extents
        listed = self.q2k_block_index.shape[3] if self.lists.count is None else self.lists.count
        keys = min(listed * self.lists.block, e.keys)
        return 2 * e.batch * e.query_heads * e.queries * keys * (3 * e.channels + 2 * e.value_channels)


FORWARD = Op(
    name="block_sparse_attention_forward",
    package="cudnn-fe-attention",
    problem=BlockSparseAttention,
    reference="cudnn_fe.attention.block_sparse.reference:forward",
    kernels=(),
    summary="Softmax attention in which every block of queries sees the listed blocks of keys.",
    formula=r"O_i = \frac{\sum_{t \in K(i)} e^{s_{it} - m_i} v_t}{\sum_{t \in K(i)} e^{s_{it} - m_i}}, \qquad "
    r"\mathrm{LSE}_i = m_i + \ln \sum_{t \in K(i)} e^{s_{it} - m_i}, \qquad "
    r"s_{it} = \alpha\, q_i \cdot k_t, \; m_i = \max_{t \in K(i)} s_{it}",
    tensors=FORWARD_TENSORS,
    example=FORWARD_EXAMPLE,
    source=SOURCE,
    notes=FORWARD_NOTES,
    scalars=("softmax_scale",),
    results=("o_tensor", "lse_tensor"),
    jax_name="block_sparse_attention_jax_forward",
    gradient="cudnn_fe.attention.block_sparse.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="block_sparse_attention_backward",
    package="cudnn-fe-attention",
    problem=BlockSparseAttentionBackward,
    reference="cudnn_fe.attention.block_sparse.reference:backward",
    kernels=(),
    summary="Gradients of block-sparse attention from its output and log-sum-exp.",
    formula=r"P_{it} = e^{s_{it} - \mathrm{LSE}_i}, \qquad "
    r"dS_{it} = P_{it} \left( dO_i \cdot v_t - O_i \cdot dO_i + d\mathrm{LSE}_i \right), \qquad "
    r"dQ = \alpha\, dS\, K, \; dK = \alpha\, dS^\top Q, \; dV = P^\top dO",
    tensors=BACKWARD_TENSORS,
    example=BACKWARD_EXAMPLE,
    source=SOURCE,
    notes=BACKWARD_NOTES,
    scalars=("softmax_scale",),
    results=("dq_tensor", "dk_tensor", "dv_tensor"),
    jax_name="block_sparse_attention_jax_backward",
    reference_on_gpu=True,
)
