"""The contract of NSA's selection attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.nsa import (
    PACKED,
    SOURCE,
    check_float32,
    require_pair,
    require_qkv,
    row_statistic,
)
from cudnn_fe.attention.operands import FLOATS, compact, require_flag, require_streamable
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "SelectionAttention"]

_OFFSETS = ("int32", "int64")


@dataclass(frozen=True)
class SelectionAttention(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "block_indices_tensor",
        "block_counts_tensor",
        "cum_seqlen_q_tensor",
        "cum_seqlen_k_tensor",
    )
    output_count: ClassVar[int] = 3

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    block_indices_tensor: TensorSpec
    block_counts_tensor: TensorSpec
    cum_seqlen_q_tensor: TensorSpec
    cum_seqlen_k_tensor: TensorSpec
    block_size: int
    is_causal: bool
    flat: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `nsa_selection_attention_forward`, and ``flat`` for (T, Hq) statistics."""
        q, k, v, indices, counts, first, second = operands
        assert q is not None
        assert k is not None
        assert v is not None
        assert indices is not None
        assert counts is not None
        if q.ndim == 4:
            raise NotYetSupportedError(
                q.name, got=str(q.shape), wanted=PACKED, remedy="pack the sequences and pass cumulative lengths"
            )
        require_qkv(q, k, v)
        require_streamable(FLOATS, q, k, v)
        require_pair(q, first, second)
        assert first is not None
        assert second is not None
        for spec in (indices, counts):
            require_dtype(spec, "int32")
        require_shape(counts, (q.shape[0], k.shape[1]), "(T, Hkv)")
        indices.require_rank(3, "(T, Hkv, K)")
        require_shape(indices, (*counts.shape, indices.shape[2]), "(T, Hkv, K)")
        require_same_device(q, indices, counts, first, second)
        require_one_of(options["block_size"], "block_size", (16, 32, 64, 128))
        require_flag(options["is_causal"], "is_causal")
        if options["o_dtype"] is not None:
            require_one_of(dtype(options["o_dtype"], operand="o_dtype").name, "o_dtype", (q.dtype.name,))
        check_float32(acc_dtype=options["acc_dtype"])
        rows, keys = options["max_s_q"], options["max_s_k"]
        if rows is not None and keys is not None and rows != keys:
            raise NotYetSupportedError(
                "max_s_k", got=str(keys), wanted=f"{rows}, as max_s_q", remedy="keys and queries are of one length"
            )
        causal, flat = options["is_causal"], bool(options["flat"])
        return cls(q, k, v, indices, counts, first, second, options["block_size"], causal, flat)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O, the sum of exponentials and the largest scaled score."""
        q, channels = self.q_tensor, self.v_tensor.shape[-1]
        return (
            compact("o_tensor", (*q.shape[:-1], channels), q.dtype, q.device),
            row_statistic("l_tensor", q, flat=self.flat),
            row_statistic("m_tensor", q, flat=self.flat),
        )

    @property
    def degenerate(self) -> bool:
        """No queries, keys or entries of lists."""
        return 0 in (*self.q_tensor.shape, *self.v_tensor.shape, self.block_indices_tensor.shape[2])

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every query and token that its lists have room for."""
        rows, heads, channels = self.q_tensor.shape
        keys = min(self.block_indices_tensor.shape[2] * self.block_size, self.k_tensor.shape[0])
        return 2 * rows * heads * keys * (channels + self.v_tensor.shape[-1])


EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import nsa_selection_attention_forward

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((40, 1, 16), dtype=np.float32) for _ in range(3))
blocks = np.ones((40, 1, 2), np.int32)  # every query selects block 1, tokens 16..31
counts = np.ones((40, 1), np.int32)
ends = np.asarray([0, 40], np.int32)
out = nsa_selection_attention_forward(q, k, v, blocks, counts, ends, ends, block_size=16, is_causal=True)
assert not out["o_tensor"][:16].any()  # block 1 lies in the future of the first 16 tokens
np.testing.assert_array_equal(out["o_tensor"][16], v[16])
np.testing.assert_array_equal(out["l_tensor"][16], [[1.0]])  # one token: exp(0)
"""

_ROWS = "channels contiguous, any other strides"
_STATISTICS = ("float32", "float64")
FORWARD = Op(
    name="nsa_selection_attention_forward",
    package="cudnn-fe-attention",
    problem=SelectionAttention,
    reference="cudnn_fe.attention.nsa_selection.reference:selection_attention",
    kernels=(),
    summary="Attention of every query token over its own list of key blocks.",
    formula=r"M_i = \max_{j \in K(i)} s_{ij}, \quad L_i = \sum_{j \in K(i)} e^{s_{ij} - M_i}, \quad "
    r"O_i = \frac{1}{L_i} \sum_{j \in K(i)} e^{s_{ij} - M_i} v_j",
    tensors=(
        TensorRule("q_tensor", "(T, Hq, D)", _ROWS, FLOATS, "packed queries"),
        TensorRule("k_tensor", "(T, Hkv, D)", _ROWS, FLOATS, "packed keys; query head h reads head h // (Hq / Hkv)"),
        TensorRule("v_tensor", "(T, Hkv, Dv)", _ROWS, FLOATS, "packed values"),
        TensorRule("block_indices_tensor", "(T, Hkv, K)", "any strides", ("int32",), "blocks, counted per sequence"),
        TensorRule("block_counts_tensor", "(T, Hkv)", "any strides", ("int32",), "entries of each list that are read"),
        TensorRule("cum_seqlen_q_tensor", "(B+1,)", "any strides", _OFFSETS, "first row of each sequence"),
        TensorRule("cum_seqlen_k_tensor", "(B+1,)", "any strides", _OFFSETS, "likewise for keys"),
        TensorRule("o_tensor", "(T, Hq, Dv)", "compact", FLOATS, "the output"),
        TensorRule("l_tensor", "(T, Hq, 1)", "compact", _STATISTICS, "sum of exponentials relative to M, no logarithm"),
        TensorRule("m_tensor", "(T, Hq, 1)", "compact", _STATISTICS, "largest scaled score, in natural units"),
    ),
    example=EXAMPLE,
    source=SOURCE,
    notes=(
        "In `cudnn`: `NSA.selection_attention_wrapper` and the class `NSA.SelectionAttention`.",
        "A query whose list is empty or holds no token that it may see gives O = 0, L = 0 and M of minus infinity.",
        "Tokens past the end of the sequence are never seen, whether `is_causal` or not. Blocks may come in any order; "
        "one that is listed twice counts once.",
        "Scores are scaled before they are masked, so that scales of zero and below are meaningful.",
        "`max_s_q` and `max_s_k` are hints: every row is computed, and no length is read on the host.",
        "Accepted beyond the vendor: any head sizes and groups, float32 and float64, CPU, NumPy and JAX.",
    ),
    scalars=("scale_softmax",),
    results=("o_tensor", "l_tensor", "m_tensor"),
    reference_on_gpu=True,
)
