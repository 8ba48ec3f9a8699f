"""The contract of the gradients of softmax attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.bands import Band
from cudnn_fe.attention.operands import (
    FLOATS,
    compact,
    require_flag,
    require_groups,
    require_offsets,
    require_streamable,
    statistics_dtype,
)
from cudnn_fe.attention.sdpa.docs import EXAMPLE, NOTES, SOURCE, TENSORS
from cudnn_fe.core.call import physical_order
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "SdpaBackward"]

_WORDS = "(B, H, S, D)"


def _band(options: dict[str, Any]) -> Band:
    causal, bottom = options["is_causal"], options["causal_bottom_right"]
    for name in ("is_causal", "causal_bottom_right", "deterministic"):
        require_flag(options[name], name)
    left, right = options["window_size_left"], options["window_size_right"]
    for name, value in (("window_size_left", left), ("window_size_right", right)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not whole or value < 0):
            raise OptionError(name, got=repr(value), wanted="an int of at least 0, or None", remedy="None is no bound")
    for name, value in (("causal_bottom_right", bottom), ("window_size_right", right is not None)):
        if value and not causal:
            raise OptionError(name, got=repr(options[name]), wanted="is_causal=True beside it", remedy="pass is_causal")
    return Band(left, (right or 0) if causal else None, bottom)


def _check_lengths(
    q: TensorSpec, lengths: tuple[TensorSpec | None, ...], offsets: tuple[TensorSpec | None, ...]
) -> None:
    """Validates lengths (B,) and offsets (B+1,) of sequences."""
    names = "cum_seqlen_q_tensor", "cum_seqlen_k_tensor"
    batch = q.shape[0]
    if offsets[0] is not None or offsets[1] is not None:
        if offsets[0] is None or offsets[1] is None:
            missing = names[0] if offsets[0] is None else names[1]
            raise ShapeError(missing, got="None", wanted="both offsets or none", remedy="pass the missing one")
        batch = require_offsets(offsets[0])
        require_offsets(offsets[1], offsets[0])
        if q.shape[0] != 1:
            raise ShapeError(q.name, got=str(q.shape), wanted="(1, H, T, D), packed", remedy="pack the sequences")
    if lengths[0] is not None and lengths[1] is None:
        raise OptionError("seq_kv_lens", got="None", wanted="lengths of keys beside those of queries", remedy="pass it")
    for spec in lengths:
        if spec is not None:
            require_dtype(spec, "int32")
            require_shape(spec, (batch,), "(B,)")
    require_same_device(q, *lengths, *offsets)


@dataclass(frozen=True)
class SdpaBackward(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "o_tensor",
        "do_tensor",
        "stats_tensor",
        "seq_q_lens",
        "seq_kv_lens",
        "sink_token",
        "bias_tensor",
        "cum_seqlen_q_tensor",
        "cum_seqlen_k_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset(operands[6:])
    kept: ClassVar[frozenset[str]] = frozenset({"stats_tensor", "sink_token", "bias_tensor"})
    output_count: ClassVar[int] = 0

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    o_tensor: TensorSpec
    do_tensor: TensorSpec
    stats_tensor: TensorSpec
    seq_q_lens: TensorSpec | None
    seq_kv_lens: TensorSpec | None
    sink_token: TensorSpec | None
    bias_tensor: TensorSpec | None
    cum_seqlen_q_tensor: TensorSpec | None
    cum_seqlen_k_tensor: TensorSpec | None
    is_causal: bool
    causal_bottom_right: bool
    window_size_left: int | None
    window_size_right: int | None
    deterministic: bool
    dbias_dtype: DType | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `sdpa_backward`, and ``dbias_dtype``, float32 where None."""
        q, k, v, o, do, stats, q_lengths, k_lengths, sink, bias, q_offsets, k_offsets = operands
        assert q is not None
        assert k is not None
        assert v is not None
        assert o is not None
        assert do is not None
        assert stats is not None
        for spec in (q, k, v):
            spec.require_rank(4, _WORDS)
        require_shape(k, (q.shape[0], *k.shape[1:3], q.shape[3]), _WORDS)
        require_shape(v, (*k.shape[:3], v.shape[3]), _WORDS)
        require_groups(q.shape[1], k.shape[1], q.name)
        for spec in (o, do):
            require_shape(spec, (*q.shape[:3], v.shape[3]), "(B, Hq, Sq, Dv)")
        require_streamable(FLOATS, q, k, v, o, do)
        kind = statistics_dtype(q)
        require_dtype(stats, kind.name)
        require_shape(stats, (*q.shape[:3], 1), "(B, Hq, Sq, 1)")
        band = _band(options)
        _check_lengths(q, (q_lengths, k_lengths), (q_offsets, k_offsets))
        if sink is not None:
            require_dtype(sink, kind.name)
            require_shape(sink, (1, q.shape[1], 1, 1), "(1, Hq, 1, 1)")
        wanted = options["dbias_dtype"]
        if bias is not None:
            if q_offsets is not None:
                raise NotYetSupportedError(
                    "bias_tensor", got="a bias of packed sequences", wanted="None", remedy="pad the sequences"
                )
            require_dtype(bias, q.dtype.name, kind.name)
            require_shape(
                bias, (1 if bias.shape[:1] == (1,) else q.shape[0], *q.shape[1:3], k.shape[2]), "(B, Hq, Sq, Skv)"
            )
            wanted = kind if wanted is None else dtype(wanted, operand="dbias_tensor")
            if wanted.name not in (q.dtype.name, kind.name):
                raise DTypeError(
                    "dbias_tensor", got=str(wanted), wanted=f"{q.dtype} or {kind}", remedy="allocate one of these"
                )
        require_same_device(q, stats, sink, bias)
        windows = options["window_size_left"], options["window_size_right"]
        rest = (options["is_causal"], band.bottom_right, *windows, options["deterministic"])
        return cls(
            q, k, v, o, do, stats, q_lengths, k_lengths, sink, bias, q_offsets, k_offsets, *rest,
            None if bias is None else wanted,
        )  # fmt: skip

    @property
    def band(self) -> Band:
        """Which keys a query sees by their places."""
        after = (self.window_size_right or 0) if self.is_causal else None
        return Band(self.window_size_left, after, self.causal_bottom_right)

    @property
    def packed(self) -> bool:
        """Whether one batch holds all sequences."""
        return self.cum_seqlen_q_tensor is not None

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dQ, dK and dV with their operands' order in memory; dBias and dSink where there are such operands."""
        results = [
            compact(name, spec.shape, spec.dtype, self.device, tuple(reversed(physical_order(spec))))
            for name, spec in (("dq_tensor", self.q_tensor), ("dk_tensor", self.k_tensor), ("dv_tensor", self.v_tensor))
        ]
        if self.bias_tensor is not None:
            assert self.dbias_dtype is not None
            results.append(compact("dbias_tensor", self.bias_tensor.shape, self.dbias_dtype, self.device))
        if self.sink_token is not None:
            results.append(compact("dsink_tensor", self.sink_token.shape, self.sink_token.dtype, self.device))
        return tuple(results)

    @property
    def degenerate(self) -> bool:
        """No queries, keys, heads or channels."""
        return 0 in (*self.q_tensor.shape, *self.v_tensor.shape)

    @property
    def flops(self) -> int:
        """Five products for every query and key, as if all saw all."""
        batch, heads, rows, channels = self.q_tensor.shape
        return 2 * batch * heads * rows * self.k_tensor.shape[2] * (3 * channels + 2 * self.v_tensor.shape[3])


BACKWARD = Op(
    name="sdpa_backward",
    package="cudnn-fe-attention",
    problem=SdpaBackward,
    reference="cudnn_fe.attention.sdpa.reference:backward",
    kernels=(),
    summary="Gradients of softmax attention, with bias, sinks, windows and lengths, from its output and log-sum-exp.",
    formula=r"P_{ij} = e^{\alpha\, q_i \cdot k_j + b_{ij} - \mathrm{LSE}_i}, \qquad "
    r"dS_{ij} = P_{ij} \left( dO_i \cdot v_j - O_i \cdot dO_i \right), \qquad "
    r"dQ = \alpha\, dS\, K, \; dK = \alpha\, dS^\top Q, \; dV = P^\top dO, \; db = dS, \; "
    r"d\mathrm{sink} = -\sum_i e^{\mathrm{sink} - \mathrm{LSE}_i}\, O_i \cdot dO_i",
    tensors=TENSORS,
    example=EXAMPLE,
    source=SOURCE,
    notes=NOTES,
    scalars=("scale_softmax",),
    results=("dq_tensor", "dk_tensor", "dv_tensor", "dbias_tensor", "dsink_tensor"),
    reference_on_gpu=True,
)
