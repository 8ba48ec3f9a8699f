"""The contracts of flex attention: forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.flex.docs import (
    BACKWARD_EXAMPLE,
    BACKWARD_NOTES,
    BACKWARD_TENSORS,
    FORWARD_EXAMPLE,
    FORWARD_NOTES,
    FORWARD_TENSORS,
    SOURCE,
)
from cudnn_fe.attention.operands import (
    FLOATS,
    compact,
    require_flag,
    require_groups,
    require_offsets,
    require_same_dtype,
    require_streamable,
    statistics_dtype,
)
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FORWARD", "FlexAttention", "FlexAttentionBackward"]

_MASK = ("mask_func", "cu_seqlens_q", "cu_seqlens_k")


def _require_operands(
    q: TensorSpec, k: TensorSpec, v: TensorSpec, func: TensorSpec, offsets: tuple[TensorSpec | None, TensorSpec | None]
) -> None:
    """Raises unless Q, K, V and the mask fit one another."""
    packed = offsets[0] is not None and offsets[1] is not None
    words, rank = ("(T, H, D)", 3) if packed else ("(B, S, H, D)", 4)
    for spec in (q, k, v):
        spec.require_rank(rank, words)
    require_shape(k, (*q.shape[:-3], *k.shape[-3:-1], q.shape[-1]), words)
    require_shape(v, (*k.shape[:-1], v.shape[-1]), words)
    require_groups(q.shape[-2], k.shape[-2], q.name)
    require_streamable(FLOATS, q, k, v)
    require_dtype(func, "int32")
    func.require_rank(3, "(Hmask, N, total_q)")
    rows = q.shape[0] if packed else q.shape[0] * q.shape[1]
    require_shape(func, (1 if func.shape[0] == 1 else q.shape[-2], func.shape[1], rows), "(Hmask, N, total_q)")
    require_same_device(q, func, *offsets)
    if offsets[0] is not None and offsets[1] is not None:
        require_offsets(offsets[0])
        require_offsets(offsets[1], offsets[0])


def _statistic(q: TensorSpec) -> tuple[int, ...]:
    """The shape of the log-sum-exp: (B, Hq, Sq), or packed (Hq, Tq)."""
    return (*q.shape[:-3], q.shape[-2], q.shape[-3])


@dataclass(frozen=True)
class FlexAttention(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = ("q", "k", "v", *_MASK)
    optional: ClassVar[frozenset[str]] = frozenset(_MASK[1:])
    output_count: ClassVar[int] = 3

    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    mask_func: TensorSpec
    cu_seqlens_q: TensorSpec | None
    cu_seqlens_k: TensorSpec | None
    deterministic: bool
    has_backward: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``deterministic`` and ``has_backward``, both for the backward."""
        q, k, v, func, first, second = operands
        assert q is not None
        assert k is not None
        assert v is not None
        assert func is not None
        _require_operands(q, k, v, func, (first, second))
        require_flag(options["deterministic"], "deterministic")
        return cls(q, k, v, func, first, second, options["deterministic"], options["has_backward"])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O, the log-sum-exp, and each head's largest scaled score."""
        statistics = statistics_dtype(self.q)
        return (
            compact("o_tensor", (*self.q.shape[:-1], self.v.shape[-1]), self.q.dtype, self.device),
            compact("lse_tensor", _statistic(self.q), statistics, self.device),
            compact("max_logit_tensor", (self.q.shape[-2],), statistics, self.device),
        )

    @property
    def degenerate(self) -> bool:
        """No queries, keys, heads or channels."""
        return 0 in (*self.q.shape, *self.k.shape, *self.v.shape)

    @property
    def flops(self) -> int:
        """2 (D + Dv) for every query and key, as if all were of one sequence without a mask."""
        return 2 * self.q.size // max(self.q.shape[-1], 1) * self.k.shape[-3] * (self.q.shape[-1] + self.v.shape[-1])


@dataclass(frozen=True)
class FlexAttentionBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "do_tensor",
        "q",
        "k",
        "v",
        "o_tensor",
        "lse_tensor",
        *_MASK,
        "dlse_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({*_MASK[1:], "dlse_tensor"})
    kept: ClassVar[frozenset[str]] = frozenset({"lse_tensor", "dlse_tensor"})
    output_count: ClassVar[int] = 3

    do_tensor: TensorSpec
    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    o_tensor: TensorSpec
    lse_tensor: TensorSpec
    mask_func: TensorSpec
    cu_seqlens_q: TensorSpec | None
    cu_seqlens_k: TensorSpec | None
    dlse_tensor: TensorSpec | None
    deterministic: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``deterministic``, and ``has_backward`` of the plan."""
        do, q, k, v, o, lse, func, first, second, dlse = operands
        assert do is not None
        assert q is not None
        assert k is not None
        assert v is not None
        assert o is not None
        assert lse is not None
        assert func is not None
        _require_operands(q, k, v, func, (first, second))
        for spec in (do, o):
            require_shape(spec, (*q.shape[:-1], v.shape[-1]), "the shape of the output")
            require_rows(spec)
        require_same_dtype(q, do, o)
        for statistic in (lse, dlse):
            if statistic is not None:
                require_dtype(statistic, statistics_dtype(q).name)
                require_shape(statistic, _statistic(q), "(B, Hq, Sq), or packed (Hq, Tq)")
        require_same_device(q, do, o, lse, dlse)
        require_flag(options["deterministic"], "deterministic")
        if not options["has_backward"]:
            raise OptionError(
                "mask_plan",
                got="a plan without a backward",
                wanted="one that was made with build_backward=True",
                remedy="make it from operands that require gradients, or ask for it",
            )
        return cls(do, q, k, v, o, lse, func, first, second, dlse, options["deterministic"])

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """The call's options: a bound problem's plan has a backward."""
        return ("deterministic", self.deterministic), ("has_backward", True)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dQ, dK, dV, compact, with the shapes of Q, K and V."""
        pairs = (("dq_tensor", self.q), ("dk_tensor", self.k), ("dv_tensor", self.v))
        return tuple(compact(name, spec.shape, spec.dtype, self.device) for name, spec in pairs)

    @property
    def degenerate(self) -> bool:
        """No queries, keys, heads or channels."""
        return 0 in (*self.q.shape, *self.k.shape, *self.v.shape)

    @property
    def flops(self) -> int:
        """Five products where the forward has two."""
        per_pair = 2 * (3 * self.q.shape[-1] + 2 * self.v.shape[-1])
        return self.q.size // max(self.q.shape[-1], 1) * self.k.shape[-3] * per_pair


FORWARD = Op(
    name="flex_attention_forward",
    package="cudnn-fe-attention",
    problem=FlexAttention,
    reference="cudnn_fe.attention.flex.reference:forward",
    kernels=(),
    summary="Softmax attention under a mask of key intervals per query.",
    formula=r"V(i) = [0, F_0) \cup [F_1, F_2) \cup \dots, \qquad "
    r"O_i = \frac{\sum_{j \in V(i)} e^{s_{ij} - m_i} v_j}{\sum_{j \in V(i)} e^{s_{ij} - m_i}}, \qquad "
    r"\mathrm{LSE}_i = m_i + \ln \sum_{j \in V(i)} e^{s_{ij} - m_i}, \qquad s_{ij} = \alpha\, q_i \cdot k_j",
    tensors=FORWARD_TENSORS,
    example=FORWARD_EXAMPLE,
    source=SOURCE,
    notes=FORWARD_NOTES,
    scalars=("softmax_scale",),
    results=("o_tensor", "lse_tensor", "max_logit_tensor"),
    gradient="cudnn_fe.attention.flex.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="flex_attention_backward",
    package="cudnn-fe-attention",
    problem=FlexAttentionBackward,
    reference="cudnn_fe.attention.flex.reference:backward",
    kernels=(),
    summary="Gradients of flex attention from its output and log-sum-exp.",
    formula=r"P_{ij} = e^{s_{ij} - \mathrm{LSE}_i}, \qquad "
    r"dS_{ij} = P_{ij} \left( dO_i \cdot v_j - O_i \cdot dO_i + d\mathrm{LSE}_i \right), \qquad "
    r"dQ = \alpha\, dS\, K, \; dK = \alpha\, dS^\top Q, \; dV = P^\top dO",
    tensors=BACKWARD_TENSORS,
    example=BACKWARD_EXAMPLE,
    source=SOURCE,
    notes=BACKWARD_NOTES,
    scalars=("softmax_scale",),
    results=("dq_tensor", "dk_tensor", "dv_tensor"),
    reference_on_gpu=True,
)
