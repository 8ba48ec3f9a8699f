"""The contracts of what a span of tokens does to a state, and to its gradient: for sequences split over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.linear.docs import summary_docs
from cudnn_fe.attention.linear.operands import Flags, Rule, TokenCall, bind_tokens, require_states
from cudnn_fe.attention.operands import FLOATS, compact, require_flag, require_same_dtype, statistics_dtype
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "GDN2_BACKWARD",
    "GDN2_FORWARD",
    "GDN_BACKWARD",
    "GDN_FORWARD",
    "KDA_BACKWARD",
    "KDA_FORWARD",
    "PRODUCT_BACKWARD",
    "PRODUCT_FORWARD",
    "Summary",
    "SummaryBackward",
]

_STATE = ("initial_state", "a_log", "dt_bias")


def _other(given: TensorSpec, k: TensorSpec, heads: int, rows: int, channels: int, name: str) -> TensorSpec:
    """Queries, or values, that are not there: of the heads that make the keys' fit those that are."""
    count = k.shape[1] if given.shape[1] == heads else heads
    return compact(name, (rows, count, channels), k.dtype, k.device)


@dataclass(frozen=True)
class _Span(TokenCall):
    """What both directions share."""

    a_log: TensorSpec | None
    dt_bias: TensorSpec | None
    flags: Flags
    output_transition: bool

    @property
    def heads(self) -> int:
        """Heads of the state."""
        return self.g.shape[1]

    @property
    def channels(self) -> int:
        """Channels of a key."""
        return self.k.shape[2]

    @property
    def degenerate(self) -> bool:
        """No tokens, heads or channels."""
        return 0 in (*self.k.shape, self.v.shape[2], self.g.shape[1])

    @property
    def flops(self) -> int:
        """Two products of a matrix and a vector for every update and head, of the state and of the transition."""
        size = self.value_channels + self.channels * self.output_transition
        return 4 * self.k.shape[0] * self.heads * self.channels * size

    def _results(self, first: str) -> tuple[TensorSpec, ...]:
        wide = statistics_dtype(self.k)
        shape = (self.sequences, self.heads)
        square = (*shape, self.channels, self.channels) if self.output_transition else (0,)
        return (
            compact(first, (*shape, self.value_channels, self.channels), wide, self.device),
            compact("transition", square, wide, self.device),
        )


def _require_rows(g: TensorSpec, k: TensorSpec, updates: int) -> int:
    """The output heads; raises unless gates have heads at all."""
    g.require_rank(3 if g.ndim == 3 else 2, "(T, HO)")
    k.require_rank(3, "(T, HK, K)")
    if k.shape[0] != g.shape[0] * updates:
        require_shape(k, (g.shape[0] * updates, *k.shape[1:]), "(T, HK, K)" if updates == 1 else "(n T, HK, K)")
    return g.shape[1]


@dataclass(frozen=True)
class Summary(_Span):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = ("k", "v", "g", "beta", "cu_seqlens", *_STATE)
    optional: ClassVar[frozenset[str]] = frozenset(_STATE)
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", *_STATE})
    output_count: ClassVar[int] = 2

    initial_state: TensorSpec | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `gated_delta_net_summary_forward`."""
        named = {"w": None, **dict(zip(cls.operands, operands, strict=True))}
        rule = cls.bound_rule(options)
        k, v, g, cu, state = (named[n] for n in ("k", "v", "g", "cu_seqlens", "initial_state"))
        assert k is not None
        assert v is not None
        assert g is not None
        assert cu is not None
        heads = _require_rows(g, k, rule.updates)
        v.require_rank(3, "(T, HV, V)")
        require_dtype(k, *FLOATS)
        require_same_dtype(k, v)
        require_same_device(k, v)
        named["q"] = _other(v, k, heads, g.shape[0], k.shape[2], "q")
        flags = bind_tokens(rule, named, **options)
        require_flag(options["output_transition"], "output_transition")
        if state is not None:
            require_dtype(state, statistics_dtype(k).name)
            require_states(state, (cu.shape[0] - 1, heads, v.shape[2], k.shape[2]), "(N, HO, V, K)")
        bound: dict[str, Any] = {**named, "output_transition": options["output_transition"]}
        return cls(**bound, flags=flags, updates=rule.updates)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The final states, and the transitions as far as asked for."""
        return self._results("final_state")


@dataclass(frozen=True)
class SummaryBackward(_Span):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q",
        "k",
        "g",
        "beta",
        "do",
        "cu_seqlens",
        "d_final_state",
        "a_log",
        "dt_bias",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"d_final_state", "a_log", "dt_bias"})
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", "d_final_state", "a_log", "dt_bias"})
    output_count: ClassVar[int] = 2

    do: TensorSpec
    d_final_state: TensorSpec | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `gated_delta_net_summary_backward`."""
        named = {"w": None, "initial_state": None, **dict(zip(cls.operands, operands, strict=True))}
        rule = cls.bound_rule(options)
        q, k, g, do, cu, by_final = (named[n] for n in ("q", "k", "g", "do", "cu_seqlens", "d_final_state"))
        assert q is not None
        assert k is not None
        assert g is not None
        assert do is not None
        assert cu is not None
        heads = _require_rows(g, k, rule.updates)
        q.require_rank(3, "(T, H, K)")
        do.require_rank(3, "(T, HO, V)")
        if do.shape[:2] != (g.shape[0], heads):
            wanted = f"{(g.shape[0], heads)} tokens and heads, as g"
            raise NotYetSupportedError("do", got=str(do.shape), wanted=wanted, remedy="pass the outputs' gradient")
        require_same_dtype(k, do)
        named["v"] = _other(q, k, heads, k.shape[0], do.shape[2], "v")
        if rule.erasing:  # what is written takes no part
            named["w"] = compact("w", (g.shape[0], heads, do.shape[2]), k.dtype, k.device)
        flags = bind_tokens(rule, named, **options)
        require_flag(options["output_transition"], "output_transition")
        require_same_device(k, do, by_final)
        if by_final is not None:
            require_dtype(by_final, statistics_dtype(k).name)
            require_states(by_final, (cu.shape[0] - 1, heads, do.shape[2], k.shape[2]), "(N, HO, V, K)")
        del named["initial_state"]
        bound: dict[str, Any] = {**named, "output_transition": options["output_transition"]}
        return cls(**bound, flags=flags, updates=rule.updates)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The gradients of the first states, and the transitions, transposed, as far as asked for."""
        return self._results("d_initial_state")


class GatedDeltaNetSummary(Summary):
    """One call for GDN."""


class GatedDeltaNetSummaryBackward(SummaryBackward):
    """One backward call for GDN."""


class KimiDeltaAttentionSummary(Summary):
    """One call for KDA."""

    rule: ClassVar[Rule] = Rule(channelwise=True)


class KimiDeltaAttentionSummaryBackward(SummaryBackward):
    """One backward call for KDA."""

    rule: ClassVar[Rule] = Rule(channelwise=True)


class GatedDeltaNetV2Summary(Summary):
    """One call for GDN-2."""

    rule: ClassVar[Rule] = Rule(channelwise=True, erasing=True)
    operands: ClassVar[tuple[str, ...]] = ("k", "v", "g", "beta", "w", "cu_seqlens", *_STATE)
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", "w", *_STATE})


class GatedDeltaNetV2SummaryBackward(SummaryBackward):
    """One backward call for GDN-2."""

    rule: ClassVar[Rule] = Rule(channelwise=True, erasing=True)


class GatedDeltaProductSummary(Summary):
    """One call for the gated delta product."""


class GatedDeltaProductSummaryBackward(SummaryBackward):
    """One backward call for the gated delta product."""


def _op(name: str, problem: type[_Span]) -> Op:
    backward = issubclass(problem, SummaryBackward)
    way = "backward" if backward else "forward"
    return Op(
        name=f"{name}_summary_{way}",
        package="cudnn-fe-attention",
        problem=problem,
        reference=f"cudnn_fe.attention.linear.summary_reference:{way}",
        kernels=(),
        results=("d_initial_state" if backward else "final_state", "transition"),
        scalars=("scale",) if backward else (),
        reference_on_gpu=True,
        **summary_docs(name, backward=backward),
    )


GDN_FORWARD = _op("gated_delta_net", GatedDeltaNetSummary)
GDN_BACKWARD = _op("gated_delta_net", GatedDeltaNetSummaryBackward)
KDA_FORWARD = _op("kimi_delta_attention", KimiDeltaAttentionSummary)
KDA_BACKWARD = _op("kimi_delta_attention", KimiDeltaAttentionSummaryBackward)
GDN2_FORWARD = _op("gated_delta_net_v2", GatedDeltaNetV2Summary)
GDN2_BACKWARD = _op("gated_delta_net_v2", GatedDeltaNetV2SummaryBackward)
PRODUCT_FORWARD = _op("gated_delta_product", GatedDeltaProductSummary)
PRODUCT_BACKWARD = _op("gated_delta_product", GatedDeltaProductSummaryBackward)
