"""What the contracts of gated delta rules share: tokens, gates, states, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cudnn_fe.attention.operands import FLOATS, require_flag, require_offsets, require_positive, require_same_dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError, StrideError
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["Flags", "Rule", "TokenCall", "bind_tokens", "head_count", "require_pool", "require_states"]

_LOWER_BOUND = -5.0
_FLAGS = ("use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval", "safe_gate")


@dataclass(frozen=True)
class Flags:
    """What is done to the operands before the recurrence.

    Attributes:
        channelwise: Whether the decay differs from channel to channel.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        use_beta_sigmoid_in_kernel: Whether the write strength passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from a_log and dt_bias.
        gate_lower_bound: The channelwise safe gate's bound.
        gate_domain: ``"log"``, or ``"linear"`` for decays themselves.
        beta_guard: Whether strengths that would let the state grow are moved towards their mean.
    """

    channelwise: bool
    use_qk_l2norm_in_kernel: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool
    safe_gate: bool
    gate_lower_bound: float
    gate_domain: str
    beta_guard: bool = False


def head_count(q: TensorSpec, v: TensorSpec) -> int:
    """Output heads: the more of query and value heads."""
    return max(q.shape[1], v.shape[1])


@dataclass(frozen=True)
class Rule:
    """What a delta rule's operands look like.

    Attributes:
        channelwise: Whether the decay differs from channel to channel.
        erasing: Whether what is erased and what is written have gates of their own, by channel.
        updates: Updates of the state per token.
    """

    channelwise: bool
    erasing: bool = False
    updates: int = 1


@dataclass(frozen=True)
class TokenCall(Problem):
    """A call over packed tokens, and what its directions share.

    Attributes:
        rule: What the operands look like, but for the updates of a token.
    """

    rule: ClassVar[Rule] = Rule(channelwise=False)

    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    g: TensorSpec
    beta: TensorSpec
    w: TensorSpec | None
    cu_seqlens: TensorSpec
    updates: int

    @classmethod
    def bound_rule(cls, options: dict[str, Any]) -> Rule:
        """The rule with a call's updates of a token."""
        updates = options.get("num_householder", 1)
        require_positive(updates, "num_householder")
        return replace(cls.rule, updates=updates)

    @property
    def channelwise(self) -> bool:
        """Whether the decay differs from channel to channel."""
        return self.rule.channelwise

    @property
    def sequences(self) -> int:
        """Packed sequences."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def value_channels(self) -> int:
        """Channels of a value."""
        return self.v.shape[2]


def bind_tokens(rule: Rule, named: dict[str, TensorSpec | None], **options: Any) -> Flags:
    """Validates q, k, v, g, beta, w, cu_seqlens and the gate's parameters, and what is done to them."""
    q, k, v, g, beta, cu = (named[name] for name in ("q", "k", "v", "g", "beta", "cu_seqlens"))
    state, a_log, dt_bias, w = (named[name] for name in ("initial_state", "a_log", "dt_bias", "w"))
    assert q is not None
    assert k is not None
    assert v is not None
    assert g is not None
    assert beta is not None
    assert cu is not None
    for spec, words in ((q, "(T, H, K)"), (k, "(T, HK, K)"), (v, "(T, HV, V)")):
        spec.require_rank(3, words)
        require_rows(spec)
    require_dtype(q, *FLOATS)
    require_same_dtype(q, k, v)
    heads, tokens = head_count(q, v), q.shape[0]
    rows = tokens * rule.updates
    lead = "T" if rule.updates == 1 else f"{rule.updates} T"
    require_shape(k, (rows, k.shape[1], q.shape[2]), f"({lead}, HK, K)")
    require_shape(v, (rows, *v.shape[1:]), f"({lead}, HV, V)")
    if k.shape[1] not in (q.shape[1], v.shape[1]):
        raise ShapeError(
            "k", got=f"{k.shape[1]} heads", wanted=f"{q.shape[1]} or {v.shape[1]}, as q or v", remedy="repeat heads"
        )
    for spec in (q, v):
        if spec.shape[1] != heads and (spec.shape[1] < 1 or heads % spec.shape[1]):
            raise NotYetSupportedError(
                spec.name, got=f"{spec.shape[1]} heads", wanted=f"a divisor of {heads}", remedy="repeat or drop heads"
            )
    by_channel = (tokens, heads, q.shape[2])
    _require_gate(
        g, by_channel if rule.channelwise else by_channel[:2], "(T, HO, K)" if rule.channelwise else "(T, HO)"
    )
    if rule.erasing:
        assert w is not None
        _require_gate(beta, by_channel, "(T, HO, K)")
        _require_gate(w, (tokens, heads, v.shape[2]), "(T, HO, V)")
        require_dtype(w, *_beside(q))
    else:
        _require_gate(beta, (rows, heads), f"({lead}, HO)")
    require_dtype(g, *FLOATS)
    require_dtype(beta, *_beside(q))
    require_dtype(cu, "int32", "int64")
    require_offsets(cu)
    require_same_device(q, k, v, g, beta, w, cu, state, a_log, dt_bias)
    flags = _flags(rule, **options)
    for parameter, shape in ((a_log, (heads,)), (dt_bias, (heads, q.shape[2]) if rule.channelwise else (heads,))):
        if parameter is None:
            continue
        if not flags.safe_gate:
            raise OptionError(
                parameter.name,
                got="a tensor",
                wanted="None without safe_gate",
                remedy="pass safe_gate=True, or leave it out",
            )
        require_dtype(parameter, *FLOATS)
        require_shape(parameter, shape, "(HO, K)" if len(shape) == 2 else "(HO,)")
    return flags


def _beside(q: TensorSpec) -> tuple[str, str]:
    """Types of a gate beside q: its own, and what sums are taken in."""
    return q.dtype.name, "float64" if q.dtype.name == "float64" else "float32"


def _require_gate(spec: TensorSpec, shape: tuple[int, ...], words: str) -> None:
    spec.require_rank(len(shape), words)
    if spec.shape != shape:
        raise NotYetSupportedError(
            spec.name, got=str(spec.shape), wanted=f"{words} = {shape}", remedy="give a number per output head"
        )


def _flags(rule: Rule, **options: Any) -> Flags:
    guard = options.get("beta_guard", False)
    for name, value in (*((name, options[name]) for name in _FLAGS), ("beta_guard", guard)):
        require_flag(value, name)
    if guard and not options["use_qk_l2norm_in_kernel"]:
        wanted = "use_qk_l2norm_in_kernel"
        raise OptionError("beta_guard", got="True without it", wanted=wanted, remedy="normalise keys")
    require_one_of(options["gate_domain"], "gate_domain", ("log", "linear"))
    if options["allow_neg_eigval"] and not options["use_beta_sigmoid_in_kernel"]:
        raise OptionError(
            "allow_neg_eigval",
            got="True without use_beta_sigmoid_in_kernel",
            wanted="both",
            remedy="pass use_beta_sigmoid_in_kernel=True, or double beta yourself",
        )
    if options["gate_domain"] == "linear" and options["safe_gate"]:
        raise OptionError(
            "gate_domain", got="'linear' with safe_gate", wanted="'log'", remedy="a safe gate is a logarithm"
        )
    bound = options.get("gate_lower_bound")
    if bound is not None and not options["safe_gate"]:
        raise NotYetSupportedError(
            "gate_lower_bound", got=f"{bound} without safe_gate", wanted="safe_gate", remedy="pass safe_gate=True"
        )
    bound = _LOWER_BOUND if bound is None else bound
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not float("-inf") < bound < 0:
        raise OptionError("gate_lower_bound", got=repr(bound), wanted="a finite number below 0", remedy="pass -5.0")
    flags = {name: options[name] for name in _FLAGS}
    domain = options["gate_domain"]
    return Flags(
        channelwise=rule.channelwise, gate_lower_bound=float(bound), gate_domain=domain, beta_guard=guard, **flags
    )


def require_states(spec: TensorSpec, shape: tuple[int, ...], words: str) -> None:
    """Validates states, value channels before the key's."""
    require_dtype(spec, *FLOATS)
    require_shape(spec, shape, words)


def require_pool(state: TensorSpec | None, indices: TensorSpec, sequences: int, *, checkpoints: bool) -> None:
    """Validates a pool of states and the sequences' places in it."""
    if state is None:
        raise OptionError("state_indices", got="a tensor without initial_state", wanted="a pool", remedy="pass it")
    if checkpoints:
        raise OptionError(
            "state_indices", got="a tensor with checkpoints", wanted="one of the two", remedy="gather the states first"
        )
    require_dtype(indices, "int32")
    require_shape(indices, (sequences,), "(N,)")
    require_dtype(state, *FLOATS)
    state.require_rank(4, "(N_pool, HO, V, K)")
    dense = (state.shape[2] * state.shape[3], state.shape[3], 1)
    if state.size and (state.strides[1:] != dense or state.strides[0] * state.dtype.itemsize % 16):
        raise StrideError(
            "initial_state",
            got=f"strides {state.strides}",
            wanted="dense states, a multiple of 16 bytes apart",
            remedy="make the pool contiguous",
        )
    require_same_device(state, indices)
