"""The contract of block-sparse attention in FP8: bfloat16 in and out, E4M3 products in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.block_sparse.operands import BlockLists, Extents, Layout, bind_lists, extents_of
from cudnn_fe.attention.operands import compact, require_streamable
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "BlockSparseAttentionFp8"]

_INPUTS = ("bfloat16",)


@dataclass(frozen=True)
class BlockSparseAttentionFp8(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "q2k_block_index",
        "q2k_block_nums",
        "block_sizes",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"q2k_block_nums", "block_sizes"})

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    q2k_block_index: TensorSpec
    q2k_block_nums: TensorSpec | None
    block_sizes: TensorSpec | None
    lists: BlockLists
    layout: Layout = "bhsd"

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``sparse_block_size``, ``block_sparse_num`` and ``kv_splits``."""
        q, k, v, index, nums, sizes = operands
        assert q is not None
        assert k is not None
        assert v is not None
        assert index is not None
        extents = extents_of(q, k, v, "bhsd")
        require_streamable(_INPUTS, q, k, v)
        require_same_device(q, index)
        splits = options["kv_splits"]
        if isinstance(splits, bool) or not isinstance(splits, int) or not 1 <= splits <= 256:
            raise OptionError("kv_splits", got=repr(splits), wanted="an int in 1..256", remedy="leave it at 1: a hint")
        return cls(q, k, v, index, nums, sizes, bind_lists(extents, index, nums, sizes, **options))

    @property
    def extents(self) -> Extents:
        """The call's extents."""
        return extents_of(self.q_tensor, self.k_tensor, self.v_tensor, "bhsd")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O (B, Hq, Sq, Dv) in bfloat16."""
        e = self.extents
        shape = (e.batch, e.query_heads, e.queries, e.value_channels)
        return (compact("o_tensor", shape, self.q_tensor.dtype, self.device),)

    @property
    def degenerate(self) -> bool:
        """No queries or no keys."""
        return 0 in (*self.q_tensor.shape, *self.v_tensor.shape)

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every listed query and key, as far as the lists' capacity says."""
        e = self.extents
        listed = self.q2k_block_index.shape[3] if self.lists.count is None else self.lists.count
        keys = min(listed * self.lists.block, e.keys)
        return 2 * e.batch * e.query_heads * e.queries * keys * (e.channels + e.value_channels)


EXAMPLE = """\
import ml_dtypes
import numpy as np
from cudnn_fe.attention import block_sparse_attention_fp8_forward, block_sparse_attention_forward

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, 128, 128)).astype(ml_dtypes.bfloat16) for _ in range(3))
lists = np.zeros((1, 1, 2, 1), np.int32)
o = block_sparse_attention_fp8_forward(q, k, v, lists)["o_tensor"].astype(np.float32)
exact = block_sparse_attention_forward(q, k, v, lists, sparse_block_size=64)["o_tensor"].astype(np.float32)
assert np.abs(o - exact).mean() < 0.05 * np.abs(exact).mean()
"""

_ROWS = "channels contiguous, any other strides"
FORWARD = Op(
    name="block_sparse_attention_fp8_forward",
    package="cudnn-fe-attention",
    problem=BlockSparseAttentionFp8,
    reference="cudnn_fe.attention.block_sparse_fp8.reference:forward",
    kernels=(),
    summary="Block-sparse attention with Q, K, V and the probabilities quantised to E4M3 on the way.",
    formula=r"x_{it} = \alpha\, (\hat q_i \cdot \hat k_t)\, \sigma^q_i\, \sigma^k_{\lfloor t / 16 \rfloor}, \qquad "
    r"O_{id} = \sigma^v_d \frac{\sum_t \mathrm{e4m3}(2^8 e^{x_{it} - m_i})\, \hat v_{td}}{2^8 \sum_t e^{x_{it} - m_i}}",
    tensors=(
        TensorRule("q_tensor", "(B, Hq, Sq, D)", _ROWS, _INPUTS, "queries"),
        TensorRule("k_tensor", "(B, Hkv, Sk, D)", _ROWS, _INPUTS, "keys"),
        TensorRule("v_tensor", "(B, Hkv, Sk, Dv)", _ROWS, _INPUTS, "values"),
        TensorRule("q2k_block_index", "(B, Hq, ceil(Sq / block), C)", "any strides", ("int32",), "listed key blocks"),
        TensorRule("q2k_block_nums", "(B, Hq, ceil(Sq / block))", "any strides", ("int32",), "entries of each list"),
        TensorRule("block_sizes", "(Nkv,), (B, Nkv) or (B, Hq, Nkv)", "any strides", ("int32",), "valid tokens"),
        TensorRule("o_tensor", "(B, Hq, Sq, Dv)", "compact", _INPUTS, "the output"),
    ),
    example=EXAMPLE,
    source="Zhang et al., SageAttention2 (2024), arXiv 2411.10958, in the form of cudnn-frontend 1.32's FP8 block "
    "sparse attention.",
    notes=(
        "Q has a scale per row: `max(amax, 1e-3) / 448`; its reciprocal and the scaled row pass through bfloat16. K is "
        "centred on its mean over the whole sequence, which shifts all scores of a row alike, and has a scale per 16 "
        "tokens. V has one per head and channel, over the batch.",
        "Probabilities are lifted by 2^8 while they are rounded to E4M3. Their sum is taken before that rounding.",
        "Means and scales are taken over every token of K and V, listed or not, within `block_sizes` or not: a NaN "
        "there reaches what shares its scale. The last group of fewer than 16 tokens counts those that there are.",
        "A query that sees no token gives 0. `kv_splits` is a hint without effect on results.",
        "Accepted beyond the vendor: any head size, grouped heads, any strides of rows, any sequence length, lists of "
        "any length on every device, CPU, NumPy and JAX.",
    ),
    scalars=("softmax_scale",),
    results=("o_tensor",),
    reference_on_gpu=True,
)
