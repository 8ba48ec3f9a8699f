"""The contracts of Mamba-2's state-space layer and of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.operands import FLOATS, compact, require_flag, require_same_dtype, statistics_dtype
from cudnn_fe.core.errors import DTypeError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FORWARD", "Mamba2", "Mamba2Backward"]

_INPUTS = ("x", "dt", "A", "B", "C", "D", "dt_bias", "z", "initial_state")
_OPTIONAL = ("D", "dt_bias", "z", "initial_state")
_WIDE = ("A", "D", "dt_bias", "initial_state")  # kept in what sums are taken in


def _require_layer(named: dict[str, TensorSpec | None]) -> None:
    x, dt, a, b, c = (named[name] for name in ("x", "dt", "A", "B", "C"))
    assert x is not None
    assert dt is not None
    assert a is not None
    assert b is not None
    assert c is not None
    x.require_rank(4, "(batch, length, heads, P)")
    require_dtype(x, *FLOATS)
    batch, length, heads, channels = x.shape
    b.require_rank(4, "(batch, length, groups, N)")
    groups, states = b.shape[2:]
    if heads != groups and (groups < 1 or heads % groups):
        raise ShapeError("B", got=f"{groups} groups", wanted=f"a divisor of {heads} heads", remedy="repeat groups")
    shapes = {
        "dt": ((batch, length, heads), "(batch, length, heads)"),
        "A": ((heads,), "(heads,)"),
        "B": ((batch, length, groups, states), "(batch, length, groups, N)"),
        "C": ((batch, length, groups, states), "(batch, length, groups, N)"),
        "D": ((heads,), "(heads,)"),
        "dt_bias": ((heads,), "(heads,)"),
        "z": ((batch, length, heads, channels), "the shape of x"),
        "initial_state": ((batch, heads, channels, states), "(batch, heads, P, N)"),
    }
    wide = statistics_dtype(x)
    for name, (shape, words) in shapes.items():
        spec = named[name]
        if spec is None:
            continue
        require_shape(spec, shape, words)
        if name in _WIDE:
            require_dtype(spec, wide.name)
        else:
            require_same_dtype(x, spec)
        require_same_device(x, spec)


@dataclass(frozen=True)
class _Layer(Problem):
    """What forward and backward share."""

    x: TensorSpec
    dt: TensorSpec
    A: TensorSpec
    B: TensorSpec
    C: TensorSpec
    D: TensorSpec | None
    dt_bias: TensorSpec | None
    z: TensorSpec | None
    initial_state: TensorSpec | None

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, P, N)."""
        batch, _, heads, channels = self.x.shape
        return batch, heads, channels, self.B.shape[3]

    @property
    def degenerate(self) -> bool:
        """No tokens, heads or channels."""
        return 0 in (*self.x.shape, self.B.shape[3])

    @property
    def _work(self) -> int:
        batch, heads, channels, states = self.state_shape
        return batch * self.x.shape[1] * heads * channels * states


@dataclass(frozen=True)
class Mamba2(_Layer):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = _INPUTS
    optional: ClassVar[frozenset[str]] = frozenset(_OPTIONAL)
    kept: ClassVar[frozenset[str]] = frozenset(_WIDE)
    output_count: ClassVar[int] = 2

    return_final_state: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``return_final_state``."""
        named = dict(zip(cls.operands, operands, strict=True))
        _require_layer(named)
        require_flag(options["return_final_state"], "return_final_state")
        bound: dict[str, Any] = dict(named)
        return cls(**bound, return_final_state=options["return_final_state"])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, and the final states, none of them unless asked for."""
        shape = self.state_shape if self.return_final_state else (0,)
        return (
            compact("out", self.x.shape, self.x.dtype, self.device),
            compact("final_state", shape, statistics_dtype(self.x), self.device),
        )

    @property
    def flops(self) -> int:
        """An outer product and a product of a matrix and a vector for every token and head."""
        return 4 * self._work


@dataclass(frozen=True)
class Mamba2Backward(_Layer):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = ("dout", "d_final_state", *_INPUTS)
    optional: ClassVar[frozenset[str]] = frozenset({"d_final_state", *_OPTIONAL})
    kept: ClassVar[frozenset[str]] = frozenset({"d_final_state", *_WIDE})
    output_count: ClassVar[int] = 0

    dout: TensorSpec
    d_final_state: TensorSpec | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        named = dict(zip(cls.operands, operands, strict=True))
        _require_layer(named)
        x, dout, by_final, b = (named[name] for name in ("x", "dout", "d_final_state", "B"))
        assert x is not None
        assert dout is not None
        assert b is not None
        require_shape(dout, x.shape, "the shape of x")
        require_same_dtype(x, dout)
        require_same_device(x, dout, by_final)
        if by_final is not None:
            batch, _, heads, channels = x.shape
            require_shape(by_final, (batch, heads, channels, b.shape[3]), "(batch, heads, P, N)")
            wide = statistics_dtype(x)
            if by_final.dtype != wide:
                wanted = f"{wide}, the states' dtype"
                raise DTypeError("d_final_state", got=str(by_final.dtype), wanted=wanted, remedy="cast it")
        bound: dict[str, Any] = dict(named)
        return cls(**bound)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """A gradient like every operand that there is."""
        pairs = ((_gradient(name), getattr(self, name)) for name in _INPUTS)
        return tuple(compact(name, x.shape, x.dtype, self.device) for name, x in pairs if x is not None)

    @property
    def flops(self) -> int:
        """Three times the forward's."""
        return 12 * self._work


def _gradient(name: str) -> str:
    return f"d_{name}" if "_" in name else f"d{name}"


_ANY, _SUMS = "any strides", ("float32", "float64")
_TENSORS = (
    TensorRule("x", "(batch, length, heads, P)", _ANY, FLOATS, "inputs"),
    TensorRule("dt", "(batch, length, heads)", _ANY, FLOATS, "time steps before their bias and softplus"),
    TensorRule("A", "(heads,)", _ANY, _SUMS, "rates of decay, below 0"),
    TensorRule("B", "(batch, length, groups, N)", _ANY, FLOATS, "where inputs are written; head h reads group h G / H"),
    TensorRule("C", "(batch, length, groups, N)", _ANY, FLOATS, "where the state is read"),
    TensorRule("D", "(heads,)", _ANY, _SUMS, "how much of the input goes past the state, or None for nothing"),
    TensorRule("dt_bias", "(heads,)", _ANY, _SUMS, "bias of the time steps, or None for 0"),
    TensorRule("z", "(batch, length, heads, P)", _ANY, FLOATS, "gates of the outputs, through SiLU, or None"),
    TensorRule("initial_state", "(batch, heads, P, N)", _ANY, _SUMS, "states before the first tokens, or None"),
)
_SOURCE = "Dao and Gu, Transformers are SSMs, arXiv 2405.21060; arguments of cudnn-frontend's `mamba2`."
_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import {name}

rng = np.random.default_rng(0)
x, b, c = (rng.standard_normal((1, 3, 2, 4), dtype=np.float32) for _ in range(3))
dt, a = np.zeros((1, 3, 2), np.float32), -np.ones(2, np.float32)
"""

FORWARD = Op(
    name="mamba2_forward",
    package="cudnn-fe-attention",
    problem=Mamba2,
    reference="cudnn_fe.attention.mamba2.reference:forward",
    kernels=(),
    summary="Mamba-2's state-space layer: a state that decays, takes inputs up and is read for outputs.",
    formula=r"\delta_t = \mathrm{softplus}(dt_t + b), \qquad S_t = e^{A \delta_t} S_{t-1} + \delta_t\, x_t B_t^\top, "
    r"\qquad \mathrm{out}_t = (S_t C_t + D x_t) \odot \mathrm{silu}(z_t)",
    tensors=(
        *_TENSORS,
        TensorRule("out", "(batch, length, heads, P)", "compact", FLOATS, "the outputs"),
        TensorRule("final_state", "(batch, heads, P, N), or empty", "compact", _SUMS, "states after the last tokens"),
    ),
    example=_EXAMPLE.format(name="mamba2_forward")
    + "out, state = mamba2_forward(x, dt, a, b, c, return_final_state=True)\n"
    "step = np.log(2.0)  # softplus(0)\n"
    "first = step * np.einsum('hp,hn->hpn', x[0, 0], b[0, 0])\n"
    "np.testing.assert_allclose(out[0, 0], np.einsum('hpn,hn->hp', first, c[0, 0]), rtol=1e-4, atol=1e-5)\n",
    source=_SOURCE,
    notes=(
        "Everything between operands and results is float32, float64 for float64 operands.",
        "Differentiable in all operands under torch autograd and JAX. Bit-equal from run to run.",
        "Accepted beyond the vendor: any GPU, any P and N, float16, float32, float64, any strides, CPU, NumPy and JAX.",
    ),
    results=("out", "final_state"),
    gradient="cudnn_fe.attention.mamba2.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="mamba2_backward",
    package="cudnn-fe-attention",
    problem=Mamba2Backward,
    reference="cudnn_fe.attention.mamba2.reference:backward",
    kernels=(),
    summary="Gradients of `mamba2_forward`.",
    formula=r"G_t = dy_t C_t^\top + e^{A \delta_{t+1}} G_{t+1}, \; dB_t = \delta_t\, G_t^\top x_t, \; "
    r"dC_t = S_t^\top dy_t, \; dx_t = \delta_t\, G_t B_t + D\, dy_t",
    tensors=(
        TensorRule("dout", "(batch, length, heads, P)", _ANY, FLOATS, "gradient of the outputs"),
        TensorRule("d_final_state", "(batch, heads, P, N)", _ANY, _SUMS, "gradient of the final states, or None"),
        *_TENSORS,
        *(TensorRule(_gradient(row.name), row.shape, "compact", row.dtypes, "its gradient") for row in _TENSORS),
    ),
    example=_EXAMPLE.format(name="mamba2_backward") + "grads = mamba2_backward(np.ones_like(x), x, dt, a, b, c)\n"
    "assert grads['dA'].shape == (2,) and grads['dz'] is None\n",
    source=_SOURCE,
    notes=("States are kept at the start of each of about sqrt(length) blocks of tokens, and computed again inside.",),
    results=tuple(_gradient(name) for name in _INPUTS),
    reference_on_gpu=True,
)
