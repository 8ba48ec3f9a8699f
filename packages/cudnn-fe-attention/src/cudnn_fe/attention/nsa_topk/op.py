"""The contract of NSA's top-k reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.nsa import PACKED, PADDED, SOURCE, require_qkv
from cudnn_fe.attention.operands import (
    FLOATS,
    compact,
    require_flag,
    require_offsets,
    require_positive,
    require_streamable,
    statistics_dtype,
)
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "TopKReduction"]

_OFFSETS = ("int32", "int64")


@dataclass(frozen=True)
class TopKReduction(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "lse_tensor",
        "cum_seqlen_q_tensor",
        "cum_seqlen_k_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"cum_seqlen_q_tensor", "cum_seqlen_k_tensor"})
    kept: ClassVar[frozenset[str]] = frozenset({"lse_tensor"})
    output_count: ClassVar[int] = 2

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    lse_tensor: TensorSpec
    cum_seqlen_q_tensor: TensorSpec | None
    cum_seqlen_k_tensor: TensorSpec | None
    k_value: int
    selection_block_size: int
    compress_stride: int
    is_causal: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `nsa_topk_reduction_forward`."""
        q, k, lse, first, second = operands
        assert q is not None
        assert k is not None
        assert lse is not None
        require_qkv(q, k, None)
        require_streamable(FLOATS, q, k)
        require_dtype(lse, statistics_dtype(q).name)
        known = (q.shape[:-1],) if q.ndim == 4 else (q.shape[:-1], (*q.shape[:-1], 1))
        if lse.shape not in known:
            raise ShapeError(
                lse.name, got=str(lse.shape), wanted=str(known), remedy="pass one value per query and head"
            )
        if (first is None) != (second is None) or (first is None) != (q.ndim == 4):
            raise ShapeError(
                "cum_seqlen_q_tensor, cum_seqlen_k_tensor",
                got=f"{2 - [first, second].count(None)} of the two with {q.ndim}-D operands",
                wanted=f"both for {PACKED}, none for {PADDED}",
                remedy="pass both or none",
            )
        if first is not None and second is not None:
            require_offsets(first)
            require_offsets(second, first)
        require_same_device(q, k, lse, first, second)
        for name in ("k_value", "selection_block_size", "compress_stride"):
            require_positive(options[name], name)
        if options["selection_block_size"] % options["compress_stride"]:
            raise OptionError(
                "selection_block_size",
                got=str(options["selection_block_size"]),
                wanted=f"a multiple of compress_stride = {options['compress_stride']}",
                remedy="choose whole compressed keys per block",
            )
        require_one_of(dtype(options["acc_dtype"], operand="acc_dtype").name, "acc_dtype", (lse.dtype.name,))
        require_flag(options["is_causal"], "is_causal")
        kept = (options[name] for name in ("k_value", "selection_block_size", "compress_stride", "is_causal"))
        return cls(q, k, lse, first, second, *kept)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Scores and ids of the best blocks of every query and key head."""
        q, heads, best = self.q_tensor, self.k_tensor.shape[1], self.k_value
        shape, order = ((q.shape[0], heads, q.shape[2], best), (3, 1, 2, 0))
        if q.ndim == 3:
            shape, order = (q.shape[0], heads, best), (2, 1, 0)  # type: ignore[assignment]
        return (
            compact("topk_scores_tensor", shape, self.lse_tensor.dtype, q.device, order),
            compact("topk_indices_tensor", shape, dtype("int32"), q.device, order),
        )

    @property
    def degenerate(self) -> bool:
        """No queries or no keys."""
        return 0 in (*self.q_tensor.shape, *self.k_tensor.shape)

    @property
    def flops(self) -> int:
        """2 D for every query and compressed key."""
        q, k = self.q_tensor, self.k_tensor
        return 2 * q.size * k.shape[2 if k.ndim == 4 else 0]


EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import nsa_topk_reduction_forward

q = np.zeros((1, 1, 320, 16), np.float32)
k = np.zeros((1, 1, 10, 16), np.float32)  # a key for every 32 tokens, two for every block of 64
lse = np.zeros((1, 1, 320), np.float32)
out = nsa_topk_reduction_forward(q, k, lse, k_value=4)
# Of the five blocks the last query may choose 1 and 2: not the first, nor the two before its own place ends.
assert out["topk_indices_tensor"][0, 0, 319].tolist() == [1, 2, -1, -1]
assert out["topk_scores_tensor"][0, 0, 319, 0] == 2.0  # two keys, each with probability exp2(0 + 0)
"""

_ROWS = "channels contiguous, any other strides"
_STATISTICS = ("float32", "float64")
FORWARD = Op(
    name="nsa_topk_reduction_forward",
    package="cudnn-fe-attention",
    problem=TopKReduction,
    reference="cudnn_fe.attention.nsa_topk.reference:topk_reduction",
    kernels=(),
    summary="Scores blocks of keys by their compressed-attention probabilities and returns the best of each query.",
    formula=r"p_{gij} = 2^{\alpha \log_2 e\; q_{gi} \cdot k_j + \mathrm{lse}_{gi}}, \qquad "
    r"\mathrm{score}_{in} = \sum_{e < E} \sum_g p_{g,i,nE+e}, \qquad "
    r"n \text{ valid} \iff 0 < n < \lfloor (i + 1) / S \rfloor - 2",
    tensors=(
        TensorRule("q_tensor", f"{PADDED} or {PACKED}", _ROWS, FLOATS, "queries"),
        TensorRule("k_tensor", f"{PADDED} or {PACKED}", _ROWS, FLOATS, "compressed keys"),
        TensorRule("lse_tensor", "(B, Hq, S), (T, Hq) or (T, Hq, 1)", "any", _STATISTICS, "-log2(e) times the LSE"),
        TensorRule("cum_seqlen_q_tensor", "(B+1,)", "any strides", _OFFSETS, "first row of each packed sequence"),
        TensorRule("cum_seqlen_k_tensor", "(B+1,)", "any strides", _OFFSETS, "likewise for keys"),
        TensorRule("topk_scores_tensor", "(B, Hkv, S, k) or (T, Hkv, k)", "heads inside tokens", _STATISTICS, "scores"),
        TensorRule("topk_indices_tensor", "(B, Hkv, S, k) or (T, Hkv, k)", "likewise", ("int32",), "blocks, or -1"),
    ),
    example=EXAMPLE,
    source=SOURCE,
    notes=(
        "In `cudnn`: `NSA.topk_reduction_wrapper` and the class `NSA.TopKReduction`.",
        "`lse_tensor` is the negated log-sum-exp in base 2, `-log2(e) * LSE`, of compression attention.",
        "The first block and the query's neighbourhood are no candidates, `is_causal` or not: the caller adds them. "
        "Candidates are the `ceil(sk / E)` blocks that there are.",
        "Best first; of equal scores the smaller block. A score of 0 still beats a slot that nothing fills, which has "
        "score minus infinity and block -1. Every slot is written.",
        "The members of key head h are query heads `h * R` to `h * R + R - 1`, as in the other NSA ops; the vendor's "
        "kernel reads `h + g * Hkv`. They are summed first, in order, then the keys of a block, in order.",
        "Accepted beyond the vendor: any `k_value`, head size and layout, float32 and float64, CPU, NumPy and JAX.",
    ),
    scalars=("scale_softmax",),
    results=("topk_scores_tensor", "topk_indices_tensor"),
    reference_on_gpu=True,
)
