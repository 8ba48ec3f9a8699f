"""The contract of the engram gate, forward and backward: operand rules, outputs, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import (
    require_aligned,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["BACKWARD", "CHANNELS", "FORWARD", "STREAMS", "EngramGateBackward", "EngramGateForward", "GateSpec"]

STREAMS, CHANNELS = 4, 5120
_TOKENS_OF_A_PARTIAL = 16  # fewest tokens that a block sums gradients of the weight over
_LARGE_SHARED = ("sm_80", "sm_87", "sm_90", "sm_100", "sm_103", "sm_107", "sm_110")


@dataclass(frozen=True, slots=True)
class GateSpec:
    """What the kernels are compiled for; the number of tokens is met at run time.

    Attributes:
        multiprocessors: Of the chip: the forward's grid is a multiple of it.
        shared_weights: Whether a block may hold 160 KiB of shared memory: the backward then keeps the weights there.
        arch: The compiler's target.
    """

    multiprocessors: int
    shared_weights: bool
    arch: str


def _require(spec: TensorSpec, shape: tuple[int, ...], layout: str, kind: str) -> None:
    require_dtype(spec, kind)
    require_shape(spec, shape, layout)
    require_contiguous(spec)
    require_aligned(spec, nbytes=1 if kind == "bool" else 16)


def _require_streams(x: TensorSpec, kv: TensorSpec, weight: TensorSpec) -> int:
    x.require_rank(3, f"(N, {STREAMS}, {CHANNELS})")
    tokens = x.shape[0]
    _require(x, (tokens, STREAMS, CHANNELS), f"(N, {STREAMS}, {CHANNELS})", "bfloat16")
    _require(kv, (tokens, (STREAMS + 1) * CHANNELS), f"(N, {(STREAMS + 1) * CHANNELS})", "bfloat16")
    _require(weight, (STREAMS, CHANNELS), f"({STREAMS}, {CHANNELS})", "float32")
    return tokens


def _like(spec: TensorSpec, name: str) -> TensorSpec:
    return TensorSpec(spec.shape, spec.strides, spec.dtype, spec.device, 16, name)


@dataclass(frozen=True)
class EngramGateForward(Problem):
    """One call: every stream plus its gate times the shared value."""

    operands: ClassVar[tuple[str, ...]] = ("x", "kv", "weight", "token_mask")
    output_count: ClassVar[int] = 2

    x: TensorSpec
    kv: TensorSpec
    weight: TensorSpec
    token_mask: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        x, kv, weight, mask = (spec for spec in operands if spec is not None)
        tokens = _require_streams(x, kv, weight)
        _require(mask, (tokens,), "(N,)", "bool")
        require_same_device(x, kv, weight, mask)
        return cls(x, kv, weight, mask)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """out, as x, and saved (N, 4, 4)."""
        shape = (self.x.shape[0], STREAMS, 4)
        saved = TensorSpec(shape, contiguous_strides(shape), dtype("float32"), self.device, 16, "saved")
        return _like(self.x, "out"), saved

    @property
    def degenerate(self) -> bool:
        """No tokens."""
        return self.x.shape[0] == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


@dataclass(frozen=True)
class EngramGateBackward(Problem):
    """One call: the gradients of streams, keys, value and weight."""

    operands: ClassVar[tuple[str, ...]] = ("x", "kv", "weight", "saved", "grad_out")
    output_count: ClassVar[int] = 3

    x: TensorSpec
    kv: TensorSpec
    weight: TensorSpec
    saved: TensorSpec
    grad_out: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        x, kv, weight, saved, grad_out = (spec for spec in operands if spec is not None)
        tokens = _require_streams(x, kv, weight)
        _require(saved, (tokens, STREAMS, 4), f"(N, {STREAMS}, 4)", "float32")
        _require(grad_out, (tokens, STREAMS, CHANNELS), f"(N, {STREAMS}, {CHANNELS})", "bfloat16")
        require_same_device(x, kv, weight, saved, grad_out)
        return cls(x, kv, weight, saved, grad_out)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Shaped as x, kv and weight."""
        return _like(self.x, "grad_x"), _like(self.kv, "grad_kv"), _like(self.weight, "grad_weight")

    @property
    def degenerate(self) -> bool:
        """No tokens."""
        return self.x.shape[0] == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: Problem, where: Device) -> GateSpec:
    del problem
    return GateSpec(where.multiprocessors, where.arch.rstrip("a") in _LARGE_SHARED, where.arch)


def partial_rows(tokens: int, multiprocessors: int) -> int:
    """Blocks of the backward, each with a row of partial weight gradients."""
    return max(min(multiprocessors, tokens // _TOKENS_OF_A_PARTIAL), 1)


def _partials(problem: EngramGateBackward, spec: GateSpec) -> tuple[TensorSpec, ...]:
    shape = (partial_rows(problem.x.shape[0], spec.multiprocessors), STREAMS * CHANNELS)
    return (TensorSpec(shape, contiguous_strides(shape), dtype("float32"), problem.device, 16, "partials"),)


_KINDS = ("bfloat16",)
_INPUTS = (
    TensorRule("x", "(N, 4, 5120)", "contiguous", _KINDS, "residual streams"),
    TensorRule("kv", "(N, 25600)", "contiguous", _KINDS, "four keys, then the shared value"),
    TensorRule("weight", "(4, 5120)", "contiguous", ("float32",), "product of the two RMSNorm weights"),
)
_SAVED = TensorRule("saved", "(N, 4, 4)", "contiguous", ("float32",), "(gate, dot, rstd of x, rstd of key) of a row")
_SOURCE = "Definition of cudnn-frontend 1.32 (engram gate, saved); RMSNorm: Zhang and Sennrich, arXiv:1910.07467."

FORWARD = Op(
    name="engram_gate_saved_forward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:engram_forward",
    package="cudnn-fe-norm-rope",
    problem=EngramGateForward,
    reference="cudnn_fe.norm_rope.engram_gate.reference:forward",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.engram_gate.portable",
            refuse=portable_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    ),
    summary="Adds a shared value to four residual streams, gated by the normalised dot product of stream and key.",
    formula=r"o_h = x_h + \sigma\left(\operatorname{sgn}(d_h) \sqrt{\max(|d_h|, 10^{-6})}\right) v, \qquad "
    r"d_h = \frac{1}{\sqrt{D}} \sum_c \frac{x_{hc} w_{hc} k_{hc}}{\operatorname{rms}(x_h) \operatorname{rms}(k_h)}",
    tensors=(
        *_INPUTS,
        TensorRule("token_mask", "(N,)", "contiguous", ("bool",), "false: the token passes unchanged"),
        TensorRule("out", "(N, 4, 5120)", "contiguous", _KINDS, "the gated streams"),
        _SAVED,
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import engram_gate_saved_forward

rng = np.random.default_rng(0)
x = rng.normal(size=(2, 4, 5120)).astype(ml_dtypes.bfloat16)
kv = rng.normal(size=(2, 5 * 5120)).astype(ml_dtypes.bfloat16)

out, saved = engram_gate_saved_forward(x, kv, np.ones((4, 5120), np.float32), np.array([True, False]))

assert (out[1] == x[1]).all()  # masked: unchanged
assert (saved[1, :, 0] == 0).all()  # its gates are shut
""",
    source=_SOURCE,
    notes=(
        "Every multiply and add is rounded on its own. Sums are taken in a fixed order: bit-equal run to run.",
        "A masked token is copied bit for bit, whatever its keys and value hold.",
    ),
    results=("out", "saved"),
    autocast=False,
    scalars=("eps",),
    legacy=("EngramGateSavedForward",),
    jax_name="engram_gate_saved_jax_forward",
    gradient="cudnn_fe.norm_rope.engram_gate.gradient:GRADIENT",
)

BACKWARD = Op(
    name="engram_gate_saved_backward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:engram_backward",
    package="cudnn-fe-norm-rope",
    problem=EngramGateBackward,
    reference="cudnn_fe.norm_rope.engram_gate.reference:backward",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.engram_gate.portable_backward",
            refuse=portable_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            scratch=_partials,
            verified=("H200",),
        ),
    ),
    summary="Gradients of the engram gate's streams, keys, value and weight.",
    tensors=(
        *_INPUTS,
        _SAVED,
        TensorRule("grad_out", "(N, 4, 5120)", "contiguous", _KINDS, "gradient of out"),
        TensorRule("grad_x", "(N, 4, 5120)", "contiguous", _KINDS, "gradient of x"),
        TensorRule("grad_kv", "(N, 25600)", "contiguous", _KINDS, "gradients of the keys and the value"),
        TensorRule("grad_weight", "(4, 5120)", "contiguous", ("float32",), "gradient of the weight"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import engram_gate_saved_backward, engram_gate_saved_forward

rng = np.random.default_rng(0)
x = rng.normal(size=(2, 4, 5120)).astype(ml_dtypes.bfloat16)
kv = rng.normal(size=(2, 5 * 5120)).astype(ml_dtypes.bfloat16)
weight = np.ones((4, 5120), np.float32)

out, saved = engram_gate_saved_forward(x, kv, weight, np.array([True, False]))
grad_x, grad_kv, grad_weight = engram_gate_saved_backward(x, kv, weight, saved, np.ones_like(x))

assert (grad_x[1] == 1).all()  # the masked token passed the gradient on
assert not grad_kv[1].any()
""",
    source=_SOURCE,
    notes=(
        "The weight's gradient is summed over blocks of tokens and then over the blocks, in a fixed order and without "
        "atomics: bit-equal run to run on one kind of GPU.",
        "A gate of 0 (a masked token) passes grad_out on bit for bit and gives no other gradient.",
    ),
    results=("grad_x", "grad_kv", "grad_weight"),
    autocast=False,
    legacy=("EngramGateSavedBackward",),
    jax_name="engram_gate_saved_jax_backward",
)
