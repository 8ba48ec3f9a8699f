"""The contracts of the gated MLP and of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

from cudnn_fe.core.errors import DTypeError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["BACKWARD", "FORWARD", "SwigluMlp", "SwigluMlpBackward"]

FLOATS = ("bfloat16", "float16", "float32", "float64")
_WEIGHTS = ("w_gate", "w_up", "w_down")


def _require_mlp(x: TensorSpec, w_gate: TensorSpec, w_up: TensorSpec, w_down: TensorSpec) -> None:
    require_dtype(x, *FLOATS)
    if x.ndim < 1:
        raise ShapeError("x", got="()", wanted="(..., H)", remedy="give it a dim of channels")
    w_gate.require_rank(2, "(I, H)")
    inner, hidden = w_gate.shape[0], x.shape[-1]
    require_shape(w_gate, (inner, hidden), "(I, H)")
    require_shape(w_up, (inner, hidden), "(I, H)")
    require_shape(w_down, (hidden, inner), "(H, I)")
    for spec in (w_gate, w_up, w_down):
        if spec.dtype != x.dtype:
            wanted = f"{x.dtype}, the dtype of x"
            raise DTypeError(spec.name, got=str(spec.dtype), wanted=wanted, remedy="cast one of the operands")
        require_same_device(x, spec)


def _compact(name: str, shape: tuple[int, ...], like: TensorSpec) -> TensorSpec:
    return TensorSpec(shape, contiguous_strides(shape), like.dtype, like.device, 16, name)


@dataclass(frozen=True)
class SwigluMlp(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = ("x", *_WEIGHTS)
    output_count: ClassVar[int] = 3

    x: TensorSpec
    w_gate: TensorSpec
    w_up: TensorSpec
    w_down: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        x, w_gate, w_up, w_down = operands
        assert x is not None
        assert w_gate is not None
        assert w_up is not None
        assert w_down is not None
        _require_mlp(x, w_gate, w_up, w_down)
        return cls(x, w_gate, w_up, w_down)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The result, and both projections."""
        inner = (*self.x.shape[:-1], self.w_gate.shape[0])
        rows = (("out", self.x.shape), ("gate", inner), ("up", inner))
        return tuple(_compact(name, shape, self.x) for name, shape in rows)

    @property
    def degenerate(self) -> bool:
        """No rows, or an empty sum."""
        return 0 in (*self.x.shape, self.w_gate.shape[0])

    @property
    def flops(self) -> int:
        """Three products."""
        return 6 * prod(self.x.shape) * self.w_gate.shape[0]


@dataclass(frozen=True)
class SwigluMlpBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = ("dout", "x", *_WEIGHTS, "gate", "up")
    output_count: ClassVar[int] = 0

    dout: TensorSpec
    x: TensorSpec
    w_gate: TensorSpec
    w_up: TensorSpec
    w_down: TensorSpec
    gate: TensorSpec
    up: TensorSpec
    needs: tuple[bool, bool, bool, bool]

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``needs``, of x and the three weights."""
        dout, x, *weights, gate, up = operands
        assert dout is not None
        assert x is not None
        assert gate is not None
        assert up is not None
        _require_mlp(x, *weights)  # type: ignore[arg-type]
        first = weights[0]
        assert first is not None
        inner = (*x.shape[:-1], first.shape[0])
        for spec, shape, words in (
            (dout, x.shape, "the shape of x"),
            (gate, inner, "(..., I)"),
            (up, inner, "(..., I)"),
        ):
            require_shape(spec, shape, words)
            if spec.dtype != x.dtype:
                wanted = f"{x.dtype}, the dtype of x"
                raise DTypeError(spec.name, got=str(spec.dtype), wanted=wanted, remedy="pass the forward's")
            require_same_device(x, spec)
        return cls(dout, x, *weights, gate, up, tuple(options["needs"]))  # type: ignore[arg-type, call-arg]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The gradients that are needed."""
        operands = (self.x, self.w_gate, self.w_up, self.w_down)
        rows = zip(operands, self.needs, strict=True)
        return tuple(_compact(f"d{spec.name}", spec.shape, spec) for spec, needed in rows if needed)

    @property
    def degenerate(self) -> bool:
        """No rows, or an empty sum."""
        return 0 in (*self.x.shape, self.w_gate.shape[0])

    @property
    def flops(self) -> int:
        """Two products for each of the forward's."""
        return 12 * prod(self.x.shape) * self.w_gate.shape[0]


_ANY = "any strides"
_INPUTS = (
    TensorRule("x", "(..., H)", _ANY, FLOATS, "activations"),
    TensorRule("w_gate", "(I, H)", _ANY, FLOATS, "weight of the gates, row by output; dtype of x"),
    TensorRule("w_up", "(I, H)", _ANY, FLOATS, "weight of what is gated"),
    TensorRule("w_down", "(H, I)", _ANY, FLOATS, "weight of the last product"),
)
_PROJECTIONS = (
    TensorRule("gate", "(..., I)", "compact", FLOATS, "gates before SiLU, which the backward reads"),
    TensorRule("up", "(..., I)", "compact", FLOATS, "what they gate"),
)
_SOURCE = (
    "Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202; the name of cudnn-frontend 1.32's "
    "`gemm.ops.swiglu_mlp`."
)
_EXAMPLE = """\
import numpy as np
from cudnn_fe.gemm import {name}

rng = np.random.default_rng(0)
x, w_down = (rng.standard_normal((4, n), dtype=np.float32) for n in (4, 6))
w_gate, w_up = (rng.standard_normal((6, 4), dtype=np.float32) for _ in range(2))
gate, up = x @ w_gate.T, x @ w_up.T
inner = gate / (1 + np.exp(-gate)) * up
"""

FORWARD = Op(
    name="swiglu_mlp_forward",
    package="cudnn-fe-gemm",
    problem=SwigluMlp,
    reference="cudnn_fe.gemm.swiglu_mlp.reference:forward",
    kernels=(),
    summary="A gated MLP: two projections, SiLU of one times the other, and the product that leads back.",
    formula=r"\mathrm{out} = \big(\mathrm{silu}(x W_g^\top) \odot x W_u^\top\big)\, W_d^\top",
    tensors=(*_INPUTS, TensorRule("out", "(..., H)", "compact", FLOATS, "the result"), *_PROJECTIONS),
    example=_EXAMPLE.format(name="swiglu_mlp_forward")
    + "np.testing.assert_allclose(swiglu_mlp_forward(x, w_gate, w_up, w_down)['out'], inner @ w_down.T, rtol=1e-4)\n",
    source=_SOURCE,
    notes=(
        "Rounded to the dtype of x: both projections, the gated product, and the result; sums and everything between "
        "are float32, float64 for float64.",
        "Differentiable in all four operands under torch autograd and JAX.",
        "Accepted beyond the vendor: any GPU, float16, float32 and float64, any extents, any strides, CPU, NumPy, JAX.",
    ),
    results=("out", "gate", "up"),
    gradient="cudnn_fe.gemm.swiglu_mlp.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="swiglu_mlp_backward",
    package="cudnn-fe-gemm",
    problem=SwigluMlpBackward,
    reference="cudnn_fe.gemm.swiglu_mlp.reference:backward",
    kernels=(),
    summary="Gradients of the gated MLP from the forward's projections.",
    formula=r"dI = dY\, W_d, \; dU = dI \odot \mathrm{silu}(G), \; dG = dI \odot U \odot \mathrm{silu}'(G), \; "
    r"dx = dG\, W_g + dU\, W_u, \; dW_g = dG^\top x, \; dW_u = dU^\top x, \; dW_d = dY^\top I",
    tensors=(
        TensorRule("dout", "(..., H)", _ANY, FLOATS, "gradient of the result"),
        *_INPUTS,
        *_PROJECTIONS,
        *(TensorRule(f"d{row.name}", row.shape, "compact", FLOATS, "its gradient") for row in _INPUTS),
    ),
    example=_EXAMPLE.format(name="swiglu_mlp_backward") + "dout = rng.standard_normal((4, 4), dtype=np.float32)\n"
    "grads = swiglu_mlp_backward(dout, x, w_gate, w_up, w_down, gate, up)\n"
    "np.testing.assert_allclose(grads['dw_down'], dout.T @ inner, rtol=1e-4)\n",
    source=_SOURCE,
    notes=("dG and dU are rounded to the dtype of x before they multiply, and each gradient once.",),
    results=("dx", "dw_gate", "dw_up", "dw_down"),
    reference_on_gpu=True,
)
