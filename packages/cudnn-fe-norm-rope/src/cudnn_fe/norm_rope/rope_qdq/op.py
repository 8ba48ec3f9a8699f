"""The contract of tail RoPE + quantise-dequantise: operand rules, formats, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import require_contiguous, require_dtype, require_one_of, require_same_device
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "QdqSpec", "RopeQdq"]

_COMBINATIONS = {("fp4", 32, "ue8m0"): 128, ("fp8", 32, "ue8m0"): 512, ("fp4", 16, "e4m3"): 512}


@dataclass(frozen=True, slots=True)
class QdqSpec:
    """What the kernel is compiled for; rows and positions are met at run time.

    Attributes:
        channels: Of a row.
        rows_per_position: Consecutive rows that share a position.
        rank: Dims of x.
        quantization: ``"fp4"`` or ``"fp8"``.
        group_size: Channels of one scale.
        scale_format: ``"ue8m0"`` or ``"e4m3"``.
        width: Bytes of one access to x.
        table_width: Bytes of one access to the cache.
        position_dtype: ``"int32"`` or ``"int64"``.
        arch: The compiler's target.
    """

    channels: int
    rows_per_position: int
    rank: int
    quantization: str
    group_size: int
    scale_format: str
    width: int
    table_width: int
    position_dtype: str
    arch: str


@dataclass(frozen=True)
class RopeQdq(Problem):
    """One call: rows with their last 64 channels rotated, then every group rounded to a small format's grid."""

    operands: ClassVar[tuple[str, ...]] = ("x", "cache", "positions")
    in_place: ClassVar[dict[int, str]] = {0: "x"}

    x: TensorSpec
    cache: TensorSpec
    positions: TensorSpec
    quantization: str
    group_size: int
    scale_format: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``quantization``, ``group_size``, ``scale_format``."""
        x, cache, positions = (spec for spec in operands if spec is not None)
        chosen = options["quantization"], options["group_size"], options["scale_format"]
        for value, name, allowed in zip(
            chosen,
            ("quantization", "group_size", "scale_format"),
            (("fp4", "fp8"), (32, 16), ("ue8m0", "e4m3")),
            strict=True,
        ):
            require_one_of(value, name, allowed)
        if chosen not in _COMBINATIONS:
            raise OptionError(
                "quantization, group_size, scale_format",
                got=repr(chosen),
                wanted=f"one of {', '.join(map(repr, _COMBINATIONS))}",
                remedy="choose a listed combination",
            )
        channels = _COMBINATIONS[chosen]
        per_token = channels == 128
        layout = "(N, H, 128)" if per_token else "(..., 512)"
        if x.ndim < 2 or (per_token and x.ndim != 3) or x.shape[-1] != channels:
            raise ShapeError(x.name, got=str(x.shape), wanted=layout, remedy="reshape it, or choose other formats")
        count = x.shape[0] if per_token else prod(x.shape[:-1])
        if positions.shape != (count,):
            raise ShapeError(
                positions.name, got=str(positions.shape), wanted=f"({count},)", remedy="one position per row of x"
            )
        cache.require_rank(2, "(P, 64)")
        if cache.shape[1] != 64 or (count and not cache.shape[0]):
            raise ShapeError(cache.name, got=str(cache.shape), wanted="(P, 64), P > 0", remedy="32 cosines, 32 sines")
        require_dtype(x, "bfloat16")
        require_dtype(cache, "float32")
        require_dtype(positions, "int32", "int64")
        require_contiguous(x, cache, positions)
        require_same_device(x, cache, positions)
        return cls(x, cache, positions, *chosen)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As x, at any alignment."""
        return (TensorSpec(self.x.shape, self.x.strides, self.x.dtype, self.device, self.x.alignment, "out"),)

    @property
    def degenerate(self) -> bool:
        """No rows."""
        return self.x.size == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: RopeQdq, where: Device) -> QdqSpec:
    return QdqSpec(
        channels=problem.x.shape[-1],
        rows_per_position=problem.x.shape[1] if problem.x.shape[-1] == 128 else 1,
        rank=problem.x.ndim,
        quantization=problem.quantization,
        group_size=problem.group_size,
        scale_format=problem.scale_format,
        width=problem.x.alignment,
        table_width=access_bytes(problem.cache),
        position_dtype=problem.positions.dtype.name,
        arch=where.arch,
    )


FORWARD = Op(
    name="rope_qdq_inplace_forward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:rope_qdq",
    package="cudnn-fe-norm-rope",
    problem=RopeQdq,
    reference="cudnn_fe.norm_rope.rope_qdq.reference:rope_qdq",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.rope_qdq.portable",
            refuse=portable_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    ),
    summary="Rotary embedding of the last 64 channels, then every group of channels rounded to FP4 or FP8, in place.",
    formula=r"x \leftarrow s \cdot \operatorname{round}(v / s), \qquad s = 2^{\lceil \log_2 (\max |v| / L) \rceil}",
    tensors=(
        TensorRule("x", "(N, H, 128), or (..., 512)", "contiguous, any alignment", ("bfloat16",), "overwritten by out"),
        TensorRule("cache", "(P, 64)", "contiguous", ("float32",), "32 cosines, then 32 sines of a position"),
        TensorRule(
            "positions", "(N,), or one per row of x", "contiguous", ("int32", "int64"), "rows of cache, in [0, P)"
        ),
        TensorRule("out", "as x", "as x", ("bfloat16",), "x itself; under JAX a new array"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import rope_qdq_inplace_forward

x = np.full((1, 512), 1.06, ml_dtypes.bfloat16)
cache = np.concatenate((np.ones((1, 32)), np.zeros((1, 32))), axis=1).astype(np.float32)  # no angle

out = rope_qdq_inplace_forward(x, cache, np.zeros(1, np.int32), quantization="fp8")["out"]

assert out is x
assert (x.astype(float) == 1.0).all()  # 272 / 256 lies halfway between 256 / 256 and 288 / 256
""",
    source="RoFormer (Su et al., arXiv:2104.09864); the formats are those of OCP OFP8 v1.0 and OCP MX v1.0.",
    notes=(
        "Combinations: FP4 in groups of 32 with power-of-two scales on (N, H, 128); FP8 likewise, and FP4 in groups of "
        "16 with E4M3 scales, on (..., 512).",
        "Bit for bit the same everywhere; signed zeros stay. On a CPU, XLA takes subnormals for zeros. NaN, infinities "
        "and positions outside the cache are the caller's to avoid.",
    ),
    results=("out",),
    autocast=False,
    legacy=("rope_qdq_inplace", "RopeQDQInplace"),
    jax_name="rope_qdq_jax_forward",
)
