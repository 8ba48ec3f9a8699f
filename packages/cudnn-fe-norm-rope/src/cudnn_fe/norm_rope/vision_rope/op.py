"""The contract of the vision encoder's RoPE backward: operand rules, outputs, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.errors import ShapeError, StrideError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import (
    require_aligned,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["BACKWARD", "CHANNELS", "HEADS", "VisionRopeBackward", "VisionSpec"]

HEADS, CHANNELS = 16, 64
_LAYOUTS = {
    "grad_q": ("[head][token][channel]", (2, 0, 1)),  # dims from the innermost outwards
    "grad_k": ("[head][channel][token]", (0, 2, 1)),
    "grad_v": ("[head][token][channel]", (2, 0, 1)),
}


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """What the kernel is compiled for; the number of tokens is met at run time.

    Attributes:
        table_width: Bytes of one access to the tables.
        column_width: Bytes of one access to K, whose tokens are innermost: what divides their number.
        arch: The compiler's target.
    """

    table_width: int
    column_width: int
    arch: str


@dataclass(frozen=True)
class VisionRopeBackward(Problem):
    """One call: the gradients of Q and K turned back, that of V copied, all three packed."""

    operands: ClassVar[tuple[str, ...]] = ("grad_q", "grad_k", "grad_v", "cosine", "sine")

    grad_q: TensorSpec
    grad_k: TensorSpec
    grad_v: TensorSpec
    cosine: TensorSpec
    sine: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        specs = [spec for spec in operands if spec is not None]
        assert len(specs) == len(cls.operands)
        grads, tables = specs[:3], specs[3:]
        grads[0].require_rank(3, "(T, 16, 64)")
        tokens = grads[0].shape[0]
        for spec, (storage, order) in zip(grads, _LAYOUTS.values(), strict=True):
            require_dtype(spec, "bfloat16")
            require_shape(spec, (tokens, HEADS, CHANNELS), "(T, 16, 64)")
            wanted = TensorSpec(spec.shape, contiguous_strides(spec.shape, order), spec.dtype).strides
            if spec.size and spec.strides != wanted:
                raise StrideError(
                    spec.name,
                    got=f"strides {spec.strides}",
                    wanted=f"{wanted}: stored as {storage}",
                    remedy="pass what the attention's backward wrote, permuted to (token, head, channel)",
                )
        for spec in tables:
            require_dtype(spec, "float32")
            if spec.shape != (tokens, 1, 32):
                raise ShapeError(spec.name, got=str(spec.shape), wanted=f"({tokens}, 1, 32)", remedy="unsqueeze it")
            require_contiguous(spec)
        require_aligned(*grads)
        require_same_device(*specs)
        return cls(*specs)

    @property
    def tokens(self) -> int:
        """T."""
        return self.grad_q.shape[0]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """(T, 3072): 1024 channels each of Q, K and V, heads outermost."""
        shape = (self.tokens, 3 * HEADS * CHANNELS)
        return (TensorSpec(shape, contiguous_strides(shape), self.grad_q.dtype, self.device, 16, "grad_qkv"),)

    @property
    def degenerate(self) -> bool:
        """No tokens."""
        return self.tokens == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: VisionRopeBackward, where: Device) -> VisionSpec:
    columns = gcd(problem.tokens * problem.grad_k.dtype.itemsize, 16)
    return VisionSpec(access_bytes(problem.cosine, problem.sine), columns, where.arch)


BACKWARD = Op(
    name="vision_rope_backward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:vision_rope",
    package="cudnn-fe-norm-rope",
    problem=VisionRopeBackward,
    reference="cudnn_fe.norm_rope.vision_rope.reference:vision_rope_backward",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.vision_rope.portable",
            refuse=portable_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    ),
    summary="Gradients of Q and K turned back by split-half RoPE, that of V copied, packed into one tensor.",
    formula=r"(a, b) \mapsto (a c + b s,\; b c - a s), \qquad b \text{ lies 32 channels after } a",
    tensors=(
        *(
            TensorRule(name, "(T, 16, 64)", f"stored as {storage}", ("bfloat16",), f"gradient of {name[-1].upper()}")
            for name, (storage, _) in _LAYOUTS.items()
        ),
        TensorRule("cosine", "(T, 1, 32)", "contiguous", ("float32",), "one cosine per pair"),
        TensorRule("sine", "(T, 1, 32)", "contiguous", ("float32",), "likewise"),
        TensorRule("grad_qkv", "(T, 3072)", "compact", ("bfloat16",), "[q | k | v], heads outermost"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import vision_rope_backward

heads_first = np.ones((16, 3, 64), ml_dtypes.bfloat16)
grad_q = grad_v = heads_first.transpose(1, 0, 2)
grad_k = np.ones((16, 64, 3), ml_dtypes.bfloat16).transpose(2, 0, 1)
cosine, sine = np.ones((3, 1, 32), np.float32), np.zeros((3, 1, 32), np.float32)

grad_qkv = vision_rope_backward(grad_q, grad_k, grad_v, cosine, sine)["grad_qkv"]

assert grad_qkv.shape == (3, 3072)
assert (grad_qkv.astype(float) == 1).all()  # no angle, nothing turned
""",
    source="RoFormer (Su et al., arXiv:2104.09864), on pairs half a head apart.",
    notes=(
        "Both products are rounded before they are added: no fused multiply-add. Bit for bit the same everywhere.",
        "The JAX entry takes the gradients as they are stored: grad_q and grad_v (16, T, 64), grad_k (16, 64, T).",
    ),
    results=("grad_qkv",),
    autocast=False,
    legacy=("vision_rope_backward_wrapper", "VisionRoPEBackward"),
    jax_name="vision_rope_jax_backward",
)
