"""The contract of tail RoPE: operand rules, outputs, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import require_contiguous, require_dtype, require_rows, require_same_device, require_shape
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["FORWARD", "PAIRS", "TailRope", "TailSpec", "require_channels"]

PAIRS = 32  # rotated pairs: the last 64 channels
_MOST_CHANNELS = 8192


@dataclass(frozen=True, slots=True)
class TailSpec:
    """What the kernel is compiled for; tokens and strides are met at run time.

    Attributes:
        heads: Rows of one token; 0 where x has no head dim.
        channels: Channels of a row.
        width: Bytes of one access to x.
        table_width: Bytes of one access to the tables.
        arch: The compiler's target.
    """

    heads: int
    channels: int
    width: int
    table_width: int
    arch: str


def require_channels(spec: TensorSpec) -> None:
    """Raises NotYetSupportedError unless the last extent is a multiple of 8 from 64 to 8192."""
    channels = spec.shape[-1]
    if not 2 * PAIRS <= channels <= _MOST_CHANNELS or channels % 8:
        raise NotYetSupportedError(
            spec.name,
            got=f"D = {channels}",
            wanted=f"a multiple of 8 in {2 * PAIRS}..{_MOST_CHANNELS}",
            remedy="pad the channels before the last 64",
        )


@dataclass(frozen=True)
class TailRope(Problem):
    """One call: the last 64 channels of every row rotated by its token's angles, the others copied."""

    operands: ClassVar[tuple[str, ...]] = ("x", "cosine", "sine")

    x: TensorSpec
    cosine: TensorSpec
    sine: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        x, cosine, sine = operands
        assert x is not None
        assert cosine is not None
        assert sine is not None
        if x.ndim not in (2, 3):
            raise NotYetSupportedError(
                x.name, got=f"shape {x.shape}", wanted="(T, D) or (T, H, D)", remedy="reshape the operand"
            )
        require_channels(x)
        require_dtype(x, "bfloat16")
        require_rows(x)
        for table in (cosine, sine):
            require_dtype(table, "float32")
            require_shape(table, (x.shape[0], PAIRS), "(T, 32)")
            require_contiguous(table)
        require_same_device(x, cosine, sine)
        return cls(x, cosine, sine)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Shaped as x, compact."""
        shape = self.x.shape
        return (TensorSpec(shape, contiguous_strides(shape), self.x.dtype, self.device, 16, "out"),)

    @property
    def degenerate(self) -> bool:
        """Nothing to write."""
        return self.x.size == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: TailRope, where: Device) -> TailSpec:
    heads = problem.x.shape[1] if problem.x.ndim == 3 else 0
    tables = access_bytes(problem.cosine, problem.sine)
    return TailSpec(heads, problem.x.shape[-1], access_bytes(problem.x), tables, where.arch)


FORWARD = Op(
    name="tail_rope_forward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:tail_rope",
    package="cudnn-fe-norm-rope",
    problem=TailRope,
    reference="cudnn_fe.norm_rope.rope_tail.reference:tail_rope",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.rope_tail.portable",
            refuse=portable_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    ),
    summary="Rotary embedding of the last 64 channels by per-token tables; the other channels are copied bit for bit.",
    formula=r"(a, b) \mapsto (a c - b s,\; b c + a s)",
    tensors=(
        TensorRule("x", "(T, D) or (T, H, D)", "channels contiguous, any other strides", ("bfloat16",), "D % 8 == 0"),
        TensorRule("cosine", "(T, 32)", "contiguous", ("float32",), "one cosine per adjacent pair of channels"),
        TensorRule("sine", "(T, 32)", "contiguous", ("float32",), "likewise; negated, the rotation is undone"),
        TensorRule("out", "as x", "compact", ("bfloat16",), "the rotated rows"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import tail_rope_forward

x = np.zeros((1, 128), ml_dtypes.bfloat16)
x[0, 64] = 2.0
quarter = np.zeros((1, 32), np.float32), np.ones((1, 32), np.float32)

out = tail_rope_forward(x, *quarter)["out"]

assert out[0, 64:66].astype(float).tolist() == [0.0, 2.0]  # a quarter turn
""",
    source="RoFormer (Su et al., arXiv:2104.09864), on adjacent pairs.",
    notes=(
        "Each result is one fused multiply-add over one rounded product, then one rounding to bfloat16: "
        "`fma(a, c, -rn(b s))` and `fma(b, c, rn(a s))`. Bit for bit the same everywhere, subnormal products aside; "
        "on a CPU, XLA takes every subnormal for zero.",
        "The gradient and the inverse are the same call with the sine negated.",
    ),
    results=("out",),
    autocast=False,
    legacy=("tail_rope", "TailRoPEForward"),
    jax_name="tail_rope_jax_forward",
)
