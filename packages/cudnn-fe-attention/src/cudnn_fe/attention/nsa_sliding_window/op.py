"""The contract of NSA's sliding-window attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.nsa import (
    PACKED,
    PADDED,
    SOURCE,
    check_float32,
    like_queries,
    require_qkv,
)
from cudnn_fe.attention.operands import FLOATS, compact, require_streamable, statistics_dtype
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "SlidingWindowAttention"]

LENGTHS = ("seq_len_q_tensor", "seq_len_kv_tensor")
RAGGED = tuple(f"{name}_ragged_offset_tensor" for name in ("q", "k", "v", "o", "stats"))


@dataclass(frozen=True)
class SlidingWindowAttention(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = ("q_tensor", "k_tensor", "v_tensor", *LENGTHS, *RAGGED)
    optional: ClassVar[frozenset[str]] = frozenset({*LENGTHS, *RAGGED})
    output_count: ClassVar[int] = 2

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    seq_len_q_tensor: TensorSpec | None
    seq_len_kv_tensor: TensorSpec | None
    q_ragged_offset_tensor: TensorSpec | None
    k_ragged_offset_tensor: TensorSpec | None
    v_ragged_offset_tensor: TensorSpec | None
    o_ragged_offset_tensor: TensorSpec | None
    stats_ragged_offset_tensor: TensorSpec | None
    left_bound: int
    right_bound: int
    o_dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `nsa_sliding_window_attention_forward`."""
        q, k, v, q_lengths, k_lengths, *ragged = operands
        in_q, in_k, in_v, in_o, in_stats = ragged
        assert q is not None
        assert k is not None
        assert v is not None
        require_qkv(q, k, v)
        require_streamable(FLOATS, q, k, v)
        require_same_device(q, q_lengths, k_lengths, *ragged)
        _check_lengths(q, [q_lengths, k_lengths], ragged)
        for name in ("left_bound", "right_bound"):
            value = options[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise OptionError(name, got=repr(value), wanted="an int from 0", remedy="count tokens")
        check_float32(
            intermediate_data_type=options["intermediate_data_type"], compute_data_type=options["compute_data_type"]
        )
        kind = q.dtype if options["o_dtype"] is None else dtype(options["o_dtype"], operand="o_dtype")
        require_one_of(kind.name, "o_dtype", FLOATS)
        left, right = options["left_bound"], options["right_bound"]
        return cls(q, k, v, q_lengths, k_lengths, in_q, in_k, in_v, in_o, in_stats, left, right, kind)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O like Q, and the log-sum-exp with a last dim of 1."""
        q = self.q_tensor
        return (
            like_queries("o_tensor", q, self.v_tensor.shape[-1], self.o_dtype),
            compact("stats_tensor", (*q.shape[:-1], 1), statistics_dtype(q), q.device),
        )

    @property
    def degenerate(self) -> bool:
        """No queries or no keys."""
        return 0 in (*self.q_tensor.shape, *self.v_tensor.shape)

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every query and key of its window."""
        q, v = self.q_tensor, self.v_tensor
        keys = min(self.left_bound + self.right_bound, v.shape[2] if v.ndim == 4 else v.shape[0])
        return 2 * q.size // max(q.shape[-1], 1) * keys * (q.shape[-1] + v.shape[-1])


def _check_lengths(q: TensorSpec, lengths: list[TensorSpec | None], ragged: list[TensorSpec | None]) -> None:
    given = [spec for spec in (*lengths, *ragged) if spec is not None]
    if q.ndim == 4:
        if given:
            raise ShapeError(
                given[0].name,
                got="a tensor",
                wanted=f"None for {PADDED} operands",
                remedy=f"pack as {PACKED} to use it",
            )
        return
    first, second = lengths
    if first is None or second is None:
        missing = LENGTHS[0] if first is None else LENGTHS[1]
        raise ShapeError(missing, got="None", wanted=f"int32 (B,) for {PACKED} operands", remedy="pass both lengths")
    batch = first.shape[0] if first.ndim else 0
    present = [spec for spec in ragged if spec is not None]
    if len(present) not in (0, len(RAGGED)):
        missing = next(name for name, spec in zip(RAGGED, ragged, strict=True) if spec is None)
        raise ShapeError(missing, got="None", wanted="all five ragged offsets or none", remedy="pass the missing ones")
    for spec, extent in ((first, batch), (second, batch), *((spec, batch + 1) for spec in present)):
        require_dtype(spec, "int32", "int64")
        if spec.shape not in ((extent,), (extent, 1, 1, 1)) or batch < 1:
            raise ShapeError(
                spec.name, got=str(spec.shape), wanted=f"({extent},) or ({extent}, 1, 1, 1)", remedy="count sequences"
            )


EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import nsa_sliding_window_attention_forward

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, 20, 16), dtype=np.float32) for _ in range(3))
out = nsa_sliding_window_attention_forward(q, k, v, left_bound=2)  # itself and the token before
p = np.exp(q[0, 0, 9] @ k[0, 0, 8:10].T / 4)
np.testing.assert_allclose(out["o_tensor"][0, 0, 9], p @ v[0, 0, 8:10] / p.sum(), rtol=1e-4)
np.testing.assert_allclose(out["stats_tensor"][0, 0, 9, 0], np.log(p.sum()), rtol=1e-4, atol=1e-5)
"""

_ROWS = "channels contiguous, any other strides"
_INTS = ("int32", "int64")
FORWARD = Op(
    name="nsa_sliding_window_attention_forward",
    package="cudnn-fe-attention",
    problem=SlidingWindowAttention,
    reference="cudnn_fe.attention.nsa_sliding_window.reference:sliding_window_attention",
    kernels=(),
    summary="Softmax attention over a window of keys around each query.",
    formula=r"j \text{ visible to } i \iff i - L < j \le i + R, \qquad "
    r"O_i = \sum_j \mathrm{softmax}_j(\alpha\, q_i \cdot k_j)\, v_j, \qquad \mathrm{stats}_i = \ln \sum_j e^{s_{ij}}",
    tensors=(
        TensorRule("q_tensor", f"{PADDED} or {PACKED}", _ROWS, FLOATS, "queries"),
        TensorRule("k_tensor", f"{PADDED} or {PACKED}", _ROWS, FLOATS, "keys; query head h reads h // (Hq / Hkv)"),
        TensorRule("v_tensor", f"{PADDED} or {PACKED}", _ROWS, FLOATS, "values"),
        TensorRule("seq_len_q_tensor", "(B,) or (B, 1, 1, 1)", "any", _INTS, "queries of each packed sequence"),
        TensorRule("seq_len_kv_tensor", "(B,) or (B, 1, 1, 1)", "any", _INTS, "keys of each packed sequence"),
        *(
            TensorRule(
                name, "(B+1,) or (B+1, 1, 1, 1)", "any", _INTS, "first element of each sequence, or None: packed"
            )
            for name in RAGGED
        ),
        TensorRule("o_tensor", "as Q, Dv channels", "compact, dims in the order of Q's", FLOATS, "the output"),
        TensorRule("stats_tensor", "(B, Hq, S, 1) or (T, Hq, 1)", "compact", ("float32", "float64"), "log-sum-exp"),
    ),
    example=EXAMPLE,
    source=SOURCE,
    notes=(
        "In `cudnn`: `NSA.sliding_window_attention_wrapper` and the class `NSA.SlidingWindowAttention`.",
        "The window starts after `i - left_bound`, so it holds `left_bound` keys up to and with the diagonal, and "
        "`right_bound` more. It is aligned at the first token, also where there are more keys than queries.",
        "A query that sees nothing gives O = 0 and statistics of minus infinity, and so does a packed row that belongs "
        "to no sequence. The default `left_bound=0` with `right_bound=0` is an empty window.",
        "Ragged offsets count elements: rows times the distance between rows. Sequences may have gaps between them, "
        "and other places in each tensor.",
        "`cudnn_handle` and the classes' `skip_compile` have no effect.",
        "Accepted beyond the vendor: any head size, more queries than keys, float32 and float64, CPU, NumPy and JAX.",
    ),
    scalars=("attn_scale",),
    results=("o_tensor", "stats_tensor"),
    reference_on_gpu=True,
)
