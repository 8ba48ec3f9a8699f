"""The contract of NSA's compression attention."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.nsa import (
    PACKED,
    PADDED,
    SOURCE,
    check_float32,
    like_queries,
    require_pair,
    require_qkv,
    row_statistic,
)
from cudnn_fe.attention.operands import FLOATS, require_streamable
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_one_of, require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "CompressionAttention"]

INPUTS = (*FLOATS, "float8_e4m3fn")
_OFFSETS = ("int32", "int64")


@dataclass(frozen=True)
class CompressionAttention(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "cum_seqlen_q_tensor",
        "cum_seqlen_k_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"cum_seqlen_q_tensor", "cum_seqlen_k_tensor"})
    output_count: ClassVar[int] = 2

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    cum_seqlen_q_tensor: TensorSpec | None
    cum_seqlen_k_tensor: TensorSpec | None
    o_dtype: DType
    flat: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `nsa_compression_attention_forward`, and ``flat`` for (T, Hq) statistics."""
        q, k, v, first, second = operands
        assert q is not None
        assert k is not None
        assert v is not None
        require_qkv(q, k, v)
        require_streamable(INPUTS, q, k, v)
        if q.ndim == 3:
            require_pair(q, first, second)
            require_same_device(q, first, second)
        elif first is not None or second is not None:
            warnings.warn("padded operands have no cumulative lengths: the given ones are ignored", stacklevel=2)
            first = second = None
        check_float32(qk_acc_dtype=options["qk_acc_dtype"], pv_acc_dtype=options["pv_acc_dtype"])
        kind = q.dtype if options["o_dtype"] is None else dtype(options["o_dtype"], operand="o_dtype")
        require_one_of(kind.name, "o_dtype", INPUTS)
        return cls(q, k, v, first, second, kind, bool(options["flat"]))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O like Q, and the log-sum-exp."""
        q = self.q_tensor
        return (
            like_queries("o_tensor", q, self.v_tensor.shape[-1], self.o_dtype),
            row_statistic("lse_tensor", q, flat=self.flat),
        )

    @property
    def degenerate(self) -> bool:
        """No queries or no keys."""
        return 0 in (*self.q_tensor.shape, *self.v_tensor.shape)

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every query and compressed key, halved by causality."""
        q, v = self.q_tensor, self.v_tensor
        return q.size // max(q.shape[-1], 1) * v.shape[-2 if v.ndim == 4 else 0] * (q.shape[-1] + v.shape[-1])


EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import nsa_compression_attention_forward

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 2, 64, 16), dtype=np.float32)
k, v = (rng.standard_normal((1, 1, 8, 16), dtype=np.float32) for _ in range(2))  # each key stands for 8 tokens
out = nsa_compression_attention_forward(q, k, v, enable_lse=True)
assert not out["o_tensor"][:, :, :7].any()  # no group of 8 tokens has ended yet
np.testing.assert_array_equal(out["o_tensor"][0, 1, 7], v[0, 0, 0])  # one has: its value alone
"""

_ROWS = "channels contiguous, any other strides"
FORWARD = Op(
    name="nsa_compression_attention_forward",
    package="cudnn-fe-attention",
    problem=CompressionAttention,
    reference="cudnn_fe.attention.nsa_compression.reference:compression_attention",
    kernels=(),
    summary="Attention of all queries over keys and values that each stand for a group of tokens, causally.",
    formula=r"j \text{ visible to } i \iff (j + 1) F \le i + 1, \; F = \max(1, \lfloor s_q / s_k \rfloor), \qquad "
    r"O_i = \frac{\sigma_v}{l_i} \sum_j e^{\sigma s_{ij} - m_i} v_j, \qquad \mathrm{LSE}_i = m_i + \ln l_i",
    tensors=(
        TensorRule("q_tensor", f"{PADDED} or {PACKED}", _ROWS, INPUTS, "queries"),
        TensorRule("k_tensor", f"{PADDED} or {PACKED}", _ROWS, INPUTS, "compressed keys; head h reads h // (Hq / Hkv)"),
        TensorRule("v_tensor", f"{PADDED} or {PACKED}", _ROWS, INPUTS, "compressed values"),
        TensorRule("cum_seqlen_q_tensor", "(B+1,)", "any strides", _OFFSETS, "first row of each packed sequence"),
        TensorRule("cum_seqlen_k_tensor", "(B+1,)", "any strides", _OFFSETS, "likewise for keys"),
        TensorRule("o_tensor", "as Q, Dv channels", "compact, dims in the order of Q's", INPUTS, "the output"),
        TensorRule("lse_tensor", "(B, Hq, S) or (T, Hq, 1)", "compact", ("float32", "float64"), "natural log-sum-exp"),
    ),
    example=EXAMPLE,
    source=SOURCE,
    notes=(
        "In `cudnn`: `NSA.compression_attention_wrapper` and the class `NSA.CompressionAttention`.",
        "The group size F is counted per sequence, rounded down, and 1 where there are fewer queries than keys. Keys "
        "beyond the last whole group stay hidden.",
        "A query before the end of the first group sees nothing: O = 0 and a log-sum-exp of minus infinity, where the "
        "vendor's kernel writes 0. So do packed rows that belong to no sequence.",
        "The factor of the scores is `scale_q * scale_k * scale_softmax`, that of the output `scale_v * inv_scale_o`. "
        "Probabilities, at most 1, are rounded to the dtype of Q before they multiply V. FP8 outputs saturate.",
        "Accepted beyond the vendor: any head size, unequal V channels, float32 and float64, CPU, NumPy and JAX.",
    ),
    scalars=("scale_q", "scale_k", "scale_v", "inv_scale_o", "scale_softmax"),
    results=("o_tensor", "lse_tensor"),
    reference_on_gpu=True,
)
