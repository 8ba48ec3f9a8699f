"""The contract of the causal convolution over whole sequences: operand rules, outputs, work, and documentation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.conv.causal_conv1d.docs import EXAMPLE, NOTES, TENSORS
from cudnn_fe.conv.causal_conv1d.kernels import BACKWARD_KERNELS, FORWARD_KERNELS
from cudnn_fe.conv.operands import (
    FLOATS,
    canonical_activation,
    require_index,
    require_parameter,
    states_output,
)
from cudnn_fe.core.call import physical_order
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["BACKWARD", "FORWARD", "CausalConv1d", "CausalConv1dBackward", "Sequences"]

Layout = Literal["BDT", "BTD"]
MOST_TAPS = 256


@dataclass(frozen=True)
class Sequences(Problem):
    """What forward and backward share: the operands that say which samples meet which taps."""

    output_count: ClassVar[int] = 0

    x: TensorSpec
    weight: TensorSpec
    bias: TensorSpec | None
    cu_seqlens: TensorSpec | None
    initial_states: TensorSpec | None
    activation: str
    layout: Layout

    @property
    def channel_dim(self) -> int:
        """Where x has its channels."""
        return self.layout.index("D")

    @property
    def time_dim(self) -> int:
        """Where x has its time."""
        return self.layout.index("T")

    @property
    def extents(self) -> tuple[int, int, int]:
        """(B, D, T)."""
        return self.x.shape[0], self.x.shape[self.channel_dim], self.x.shape[self.time_dim]

    @property
    def width(self) -> int:
        """Number of taps W."""
        return self.weight.shape[1]

    @property
    def sequence_count(self) -> int:
        """Number of sequences: of the batch, or of the packed ones."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def degenerate(self) -> bool:
        """No samples, and so nothing but states to copy."""
        return 0 in self.x.shape

    @property
    def flops(self) -> int:
        """2 B D T W; the activation is not counted."""
        return 2 * self.x.size * self.width

    def like_x(self, name: str) -> TensorSpec:
        """A compact result of x's shape and type, its dims in x's order in memory."""
        order = tuple(reversed(physical_order(self.x)))
        return TensorSpec(self.x.shape, contiguous_strides(self.x.shape, order), self.x.dtype, self.device, 16, name)

    def states(self, name: str) -> TensorSpec:
        """States (S, D, W-1) of x's type."""
        return states_output(name, self.sequence_count, self.extents[1], self.width - 1, self.x)


def layout_of(given: Any) -> Layout:
    """Raises OptionError unless ``given`` is ``"BDT"`` or ``"BTD"``."""
    if given == "BDT":
        return "BDT"
    if given == "BTD":
        return "BTD"
    raise OptionError("layout", got=repr(given), wanted='"BDT" or "BTD"', remedy="name the order of x's dims")


def activation_of(given: Any) -> str:
    """Raises NotYetSupportedError unless the activation is a documented one."""
    found = canonical_activation(given) if given is None or isinstance(given, str) else None
    if found is None:
        raise NotYetSupportedError(
            "activation", got=repr(given), wanted='None, "identity", "silu" or "swish"', remedy="apply it afterwards"
        )
    return found


def check_sequences(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    cu_seqlens: TensorSpec | None,
    initial_states: TensorSpec | None,
    layout: Layout,
) -> None:
    """Raises the typed error of the first rule of the contract that the operands break."""
    x.require_rank(3, f"({', '.join(layout)})")
    weight.require_rank(2, "(D, W)")
    require_dtype(x, *FLOATS)
    channels, width = x.shape[layout.index("D")], weight.shape[1]
    require_shape(weight, (channels, width), "(D, W)")
    if not 1 <= width <= MOST_TAPS:
        raise ShapeError(
            weight.name, got=f"W = {width}", wanted=f"1 to {MOST_TAPS} taps", remedy="use an FFT for longer filters"
        )
    require_parameter(weight, x)
    if bias is not None:
        require_shape(bias, (channels,), "(D,)")
        require_parameter(bias, x)
    count = x.shape[0]
    if cu_seqlens is not None:
        if x.shape[0] != 1:
            raise ShapeError(
                x.name, got=f"B = {x.shape[0]}", wanted="B = 1 with cu_seqlens", remedy="pack the batch along time"
            )
        cu_seqlens.require_rank(1, "(N + 1,)")
        if cu_seqlens.shape[0] < 2:
            raise ShapeError(
                cu_seqlens.name, got=str(cu_seqlens.shape), wanted="at least 2 offsets", remedy="pass [0, T]"
            )
        require_index(cu_seqlens, cu_seqlens.shape, "(N + 1,)")
        count = cu_seqlens.shape[0] - 1
    if initial_states is not None:
        require_states(initial_states, (count, channels, width - 1), x)
    require_same_device(x, weight, bias, cu_seqlens, initial_states)


def require_states(states: TensorSpec, shape: tuple[int, ...], x: TensorSpec) -> None:
    """Raises unless the operand is states of x's type."""
    require_shape(states, shape, "(S, D, W - 1)")
    require_dtype(states, x.dtype.name)


@dataclass(frozen=True)
class CausalConv1d(Sequences):
    """One call: y, and where asked for the states after each sequence's last sample."""

    operands: ClassVar[tuple[str, ...]] = ("x", "weight", "bias", "cu_seqlens", "initial_states")
    optional: ClassVar[frozenset[str]] = frozenset({"bias", "cu_seqlens", "initial_states"})

    return_final_states: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``activation``, ``return_final_states``, ``layout``."""
        x, weight, bias, cu_seqlens, initial_states = operands
        assert x is not None
        assert weight is not None
        layout, activation = layout_of(options["layout"]), activation_of(options["activation"])
        check_sequences(x, weight, bias, cu_seqlens, initial_states, layout)
        return cls(
            x, weight, bias, cu_seqlens, initial_states, activation, layout, bool(options["return_final_states"])
        )

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """y, laid out as x, and the final states (S, D, W-1)."""
        y = self.like_x("output")
        return (y, self.states("final_states")) if self.return_final_states else (y,)


@dataclass(frozen=True)
class CausalConv1dBackward(Sequences):
    """One call: gradients of x, weight, bias and initial states from those of y and the final states."""

    operands: ClassVar[tuple[str, ...]] = (
        "x",
        "weight",
        "bias",
        "cu_seqlens",
        "initial_states",
        "dy",
        "d_final_states",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"bias", "cu_seqlens", "initial_states", "d_final_states"})

    dy: TensorSpec
    d_final_states: TensorSpec | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``activation``, ``layout``."""
        x, weight, bias, cu_seqlens, initial_states, dy, d_final = operands
        assert x is not None
        assert weight is not None
        assert dy is not None
        layout, activation = layout_of(options["layout"]), activation_of(options["activation"])
        check_sequences(x, weight, bias, cu_seqlens, initial_states, layout)
        require_shape(dy, x.shape, f"({', '.join(layout)})")
        require_dtype(dy, x.dtype.name)
        problem = cls(x, weight, bias, cu_seqlens, initial_states, activation, layout, dy, d_final)
        if d_final is not None:
            require_states(d_final, problem.states("d_final_states").shape, x)
        require_same_device(x, dy, d_final)
        return problem

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dx as x, dweight (D, W), then dbias (D,) and d_initial_states (S, D, W-1) where the forward had them."""
        results = [self.like_x("dx"), self._compact(self.weight, "dweight")]
        if self.bias is not None:
            results.append(self._compact(self.bias, "dbias"))
        if self.initial_states is not None:
            results.append(self.states("d_initial_states"))
        return tuple(results)

    @staticmethod
    def _compact(spec: TensorSpec, name: str) -> TensorSpec:
        return replace(spec, strides=contiguous_strides(spec.shape), alignment=16, name=name)


FORWARD = Op(
    name="causal_conv1d",
    package="cudnn-fe-conv",
    problem=CausalConv1d,
    reference="cudnn_fe.conv.causal_conv1d.reference:causal_conv1d",
    kernels=FORWARD_KERNELS,
    summary="Causal depthwise 1-D convolution with bias, SiLU, states and packed sequences.",
    formula=r"y_{bdt} = \phi\!\left(\beta_d + \sum_{j=0}^{W-1} w_{dj}\, x_{b,\,d,\,t-(W-1)+j}\right), \qquad "
    r"\phi(z) = z \;\text{or}\; z\,\sigma(z)",
    tensors=TENSORS,
    example=EXAMPLE,
    source="Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), the convolution "
    "before its scan; names and signature of cudnn-frontend 1.32's cudnn.ops.causal_conv1d.",
    notes=NOTES,
    results=("output", "final_states"),
    jax_name="causal_conv1d",
    memory_cases="cudnn_fe.conv.torch_bench:forward",
    gradient="cudnn_fe.conv.causal_conv1d.gradient:GRADIENT",
)

BACKWARD = Op(
    name="causal_conv1d_backward",
    package="cudnn-fe-conv",
    problem=CausalConv1dBackward,
    reference="cudnn_fe.conv.causal_conv1d.reference:causal_conv1d_backward",
    kernels=BACKWARD_KERNELS,
    summary="Gradients of the causal depthwise 1-D convolution.",
    results=("dx", "dweight", "dbias", "d_initial_states"),
    memory_cases="cudnn_fe.conv.torch_bench:backward",
    public=False,
)
