"""The contracts of gated delta rules: one decay per head (GDN), or one per channel (KDA); forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.linear.docs import BACKWARD_DOCS, FORWARD_DOCS
from cudnn_fe.attention.linear.operands import (
    Flags,
    Rule,
    TokenCall,
    bind_tokens,
    head_count,
    require_pool,
    require_states,
)
from cudnn_fe.attention.operands import compact, require_flag, require_same_dtype
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, OptionError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_same_device, require_shape
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
    "DeltaRule",
    "DeltaRuleBackward",
    "GatedDeltaNet",
    "GatedDeltaNetBackward",
    "GatedDeltaNetV2",
    "GatedDeltaNetV2Backward",
    "GatedDeltaProduct",
    "GatedDeltaProductBackward",
    "KimiDeltaAttention",
    "KimiDeltaAttentionBackward",
]

_TOKENS = ("q", "k", "v", "g", "beta", "cu_seqlens")
_ERASING = ("q", "k", "v", "g", "beta", "w", "cu_seqlens")
_OPTIONAL = ("initial_state", "a_log", "dt_bias")


@dataclass(frozen=True)
class _Call(TokenCall):
    """What forward and backward share."""

    @classmethod
    def named(cls, operands: tuple[TensorSpec | None, ...]) -> dict[str, TensorSpec | None]:
        """The operands by name, None for those that the rule does not have."""
        absent = dict.fromkeys(("w", "state_indices"))
        return absent | dict(zip(cls.operands, operands, strict=True))

    @property
    def heads(self) -> int:
        """Output heads."""
        return head_count(self.q, self.v)

    @property
    def channels(self) -> int:
        """Channels of a key."""
        return self.q.shape[2]

    @property
    def degenerate(self) -> bool:
        """No tokens, heads or channels."""
        return 0 in (*self.q.shape, *self.v.shape)


@dataclass(frozen=True)
class DeltaRule(_Call):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = (*_TOKENS, *_OPTIONAL, "state_indices")
    optional: ClassVar[frozenset[str]] = frozenset({*_OPTIONAL, "state_indices"})
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", *_OPTIONAL})
    output_count: ClassVar[int] = 0

    initial_state: TensorSpec | None
    a_log: TensorSpec | None
    dt_bias: TensorSpec | None
    state_indices: TensorSpec | None
    flags: Flags
    output_final_state: bool
    overwrite: bool
    checkpoint_every_n_tokens: int
    checkpoint_dtype: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `gated_delta_net`."""
        named, rule = cls.named(operands), cls.bound_rule(options)
        flags = bind_tokens(rule, named, **options)
        q, v, cu, state, indices = (named[n] for n in ("q", "v", "cu_seqlens", "initial_state", "state_indices"))
        assert q is not None
        assert v is not None
        assert cu is not None
        for name in ("output_final_state", "overwrite_initial_state", "batch_invariant"):
            require_flag(options[name], name)
        overwrite, every = options["overwrite_initial_state"], options["checkpoint_every_n_tokens"]
        if overwrite and state is None:
            raise OptionError(
                "overwrite_initial_state", got="True without a state", wanted="initial_state", remedy="pass the buffer"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise OptionError("checkpoint_every_n_tokens", got=repr(every), wanted="0 or more", remedy="pass e.g. 64")
        if indices is not None:
            require_pool(state, indices, cu.shape[0] - 1, checkpoints=every > 0)
        elif state is not None:
            shape = (cu.shape[0] - 1, head_count(q, v), v.shape[2], q.shape[2])
            require_states(state, shape, "(N, HO, V, K)")
        final = options["output_final_state"] or overwrite
        kind = _checkpoint_dtype(options["checkpoint_dtype"], q)
        bound: dict[str, Any] = {**named, "checkpoint_every_n_tokens": every, "checkpoint_dtype": kind}
        return cls(**bound, updates=rule.updates, flags=flags, output_final_state=final, overwrite=overwrite)

    @property
    def checkpoints(self) -> int:
        """Rows of the states on the way."""
        every = self.checkpoint_every_n_tokens
        return max(self.q.shape[0] * self.updates // every + self.sequences, 1) if every else 0

    @property
    def _state_dtype(self) -> DType:
        wide = dtype("float64" if self.q.dtype.name == "float64" else "float32")
        return wide if self.initial_state is None else self.initial_state.dtype

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, the final states (none of them unless asked for), and the states on the way."""
        matrix = (self.heads, self.value_channels, self.channels)
        shape: tuple[int, ...] = (0,)
        if self.output_final_state and self.state_indices is not None:
            assert self.initial_state is not None
            shape = self.initial_state.shape
        elif self.output_final_state:
            shape = (self.sequences, *matrix)
        out = compact("o", (self.q.shape[0], self.heads, self.value_channels), self.q.dtype, self.device)
        final = compact("final_state", shape, self._state_dtype, self.device)
        if not self.checkpoint_every_n_tokens:
            return out, final
        kept = compact("checkpoints", (self.checkpoints, *matrix), dtype(self.checkpoint_dtype), self.device)
        return out, final, kept

    @property
    def flops(self) -> int:
        """Three products of a matrix and a vector for every token and head."""
        return 6 * self.q.shape[0] * self.updates * self.heads * self.channels * self.value_channels


def _checkpoint_dtype(given: Any, q: TensorSpec) -> str:
    wide = "float64" if q.dtype.name == "float64" else "float32"
    if given is None:
        return q.dtype.name
    name = dtype(given, operand="checkpoint_dtype").name
    if name not in (wide, q.dtype.name):
        raise OptionError(
            "checkpoint_dtype", got=name, wanted=f"{wide} or {q.dtype}, the dtype of q", remedy="leave it unset"
        )
    return name


@dataclass(frozen=True)
class DeltaRuleBackward(_Call):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = (*_TOKENS, "do", "d_final_state", *_OPTIONAL)
    optional: ClassVar[frozenset[str]] = frozenset({"d_final_state", *_OPTIONAL})
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", "d_final_state", *_OPTIONAL})
    output_count: ClassVar[int] = 0

    do: TensorSpec
    d_final_state: TensorSpec | None
    initial_state: TensorSpec | None
    a_log: TensorSpec | None
    dt_bias: TensorSpec | None
    flags: Flags

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; options as in `gated_delta_net_backward`."""
        named, rule = cls.named(operands), cls.bound_rule(options)
        del named["state_indices"]
        flags = bind_tokens(rule, named, **options)
        q, v, cu, do, by_final, state = (
            named[n] for n in ("q", "v", "cu_seqlens", "do", "d_final_state", "initial_state")
        )
        assert q is not None
        assert v is not None
        assert cu is not None
        assert do is not None
        shape = (cu.shape[0] - 1, head_count(q, v), v.shape[2], q.shape[2])
        require_shape(do, (q.shape[0], *shape[1:3]), "(T, HO, V)")
        require_same_dtype(q, do)
        require_same_device(q, do, by_final)
        for spec in (state, by_final):
            if spec is not None:
                require_states(spec, shape, "(N, HO, V, K)")
        if by_final is not None:
            wide = "float64" if q.dtype.name == "float64" else "float32"
            wanted = wide if state is None else state.dtype.name
            if by_final.dtype.name != wanted:
                raise DTypeError(
                    "d_final_state", got=str(by_final.dtype), wanted=f"{wanted}, the states' dtype", remedy="cast it"
                )
        bound: dict[str, Any] = dict(named)
        return cls(**bound, updates=rule.updates, flags=flags)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """A gradient like every operand that there is."""
        pairs = [(f"d{name}", getattr(self, name)) for name in (*_TOKENS[:5], "w")]
        pairs += [(f"d_{name}", getattr(self, name)) for name in _OPTIONAL]
        return tuple(compact(name, x.shape, x.dtype, self.device) for name, x in pairs if x is not None)

    @property
    def flops(self) -> int:
        """Three times the forward's."""
        return 18 * self.q.shape[0] * self.updates * self.heads * self.channels * self.value_channels


class GatedDeltaNet(DeltaRule):
    """One call of GDN."""


class KimiDeltaAttention(DeltaRule):
    """One call of KDA."""

    rule: ClassVar[Rule] = Rule(channelwise=True)


class GatedDeltaNetBackward(DeltaRuleBackward):
    """One backward call of GDN."""


class KimiDeltaAttentionBackward(DeltaRuleBackward):
    """One backward call of KDA."""

    rule: ClassVar[Rule] = Rule(channelwise=True)


class GatedDeltaNetV2(DeltaRule):
    """One call of GDN-2."""

    rule: ClassVar[Rule] = Rule(channelwise=True, erasing=True)
    operands: ClassVar[tuple[str, ...]] = (*_ERASING, *_OPTIONAL)
    optional: ClassVar[frozenset[str]] = frozenset(_OPTIONAL)
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", "w", *_OPTIONAL})


class GatedDeltaNetV2Backward(DeltaRuleBackward):
    """One backward call of GDN-2."""

    rule: ClassVar[Rule] = Rule(channelwise=True, erasing=True)
    operands: ClassVar[tuple[str, ...]] = (*_ERASING, "do", "d_final_state", *_OPTIONAL)
    kept: ClassVar[frozenset[str]] = frozenset({"g", "beta", "w", "d_final_state", *_OPTIONAL})


class GatedDeltaProduct(DeltaRule):
    """One call of the gated delta product."""


class GatedDeltaProductBackward(DeltaRuleBackward):
    """One backward call of the gated delta product."""


def _forward(name: str, problem: type[DeltaRule], rule: str, jax_name: str | None = None) -> Op:
    return Op(
        name=name,
        package="cudnn-fe-attention",
        problem=problem,
        reference="cudnn_fe.attention.linear.reference:forward",
        kernels=(),
        scalars=("scale",),
        results=("o", "final_state", "checkpoints"),
        gradient=f"cudnn_fe.attention.linear.gradient:{rule}",
        reference_on_gpu=True,
        jax_name=jax_name,
        **FORWARD_DOCS[name],
    )


def _backward(name: str, problem: type[DeltaRuleBackward], jax_name: str | None = None) -> Op:
    return Op(
        name=name,
        package="cudnn-fe-attention",
        problem=problem,
        reference="cudnn_fe.attention.linear.reference:backward",
        kernels=(),
        scalars=("scale",),
        results=(*(f"d{n}" for n in problem.operands[:-5] if n != "cu_seqlens"), *(f"d_{n}" for n in _OPTIONAL)),
        reference_on_gpu=True,
        jax_name=jax_name,
        **BACKWARD_DOCS[name],
    )


GDN_FORWARD = _forward("gated_delta_net_forward", GatedDeltaNet, "GDN")
GDN_BACKWARD = _backward("gated_delta_net_backward", GatedDeltaNetBackward)
KDA_FORWARD = _forward("kimi_delta_attention_forward", KimiDeltaAttention, "KDA", "kimi_delta_attention_forward_jax")
KDA_BACKWARD = _backward(
    "kimi_delta_attention_backward", KimiDeltaAttentionBackward, "kimi_delta_attention_backward_jax"
)
GDN2_FORWARD = _forward("gated_delta_net_v2_forward", GatedDeltaNetV2, "GDN2")
GDN2_BACKWARD = _backward("gated_delta_net_v2_backward", GatedDeltaNetV2Backward)
PRODUCT_FORWARD = _forward("gated_delta_product_forward", GatedDeltaProduct, "PRODUCT")
PRODUCT_BACKWARD = _backward("gated_delta_product_backward", GatedDeltaProductBackward)
