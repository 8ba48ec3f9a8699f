"""The contracts of the NVFP4 converters: bfloat16 rows to FP4 pairs and packed scales, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.block_scale.dequantizer.op import dequantize_kernel
from cudnn_fe.core.block_scale.dequantizer.spec import DequantizeSpec
from cudnn_fe.core.block_scale.formats import NVFP4, BlockFormat
from cudnn_fe.core.block_scale.quantizer.op import quantize_kernel
from cudnn_fe.core.block_scale.quantizer.spec import QuantizeSpec
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import require_contiguous, require_dtype, require_same_device, require_shape
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["FROM_NVFP4", "TO_NVFP4", "FromNvfp4", "ToNvfp4"]

_MOST_COLUMNS = 16384
_PAIRS = ("float4_e2m1fn", "uint8")


@dataclass(frozen=True)
class ToNvfp4(Problem):
    """One call: rows of ``input * encode_scale`` in blocks of 16, by the recipe ``"converter"``."""

    operands: ClassVar[tuple[str, ...]] = ("input_tensor", "encode_scale")
    output_count: ClassVar[int] = 2
    format: ClassVar[BlockFormat] = NVFP4
    packed: ClassVar[bool] = True
    amax: ClassVar[bool] = False

    input_tensor: TensorSpec
    encode_scale: TensorSpec
    native: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``native``, whether FP4 pairs have a dtype of their own."""
        source, encode = (spec for spec in operands if spec is not None)
        _require_matrix(source, 1)
        require_dtype(source, "bfloat16")
        require_contiguous(source)
        _require_factor(encode)
        require_same_device(source, encode)
        return cls(source, encode, options["native"])

    @property
    def x(self) -> TensorSpec:
        """What is quantised."""
        return self.input_tensor

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """FP4 pairs (1, M, K/2) and scales (1, M, K/16), in the packed order."""
        _, rows, columns = self.x.shape
        kinds = ("float4_e2m1fn" if self.native else "uint8", "float8_e4m3fn")
        shapes = ((1, rows, columns // 2), (1, rows, columns // 16))
        return tuple(
            TensorSpec(shape, contiguous_strides(shape), dtype(kind), self.device, 16, name)
            for shape, kind, name in zip(shapes, kinds, TO_NVFP4.results, strict=True)
        )

    @property
    def degenerate(self) -> bool:
        """Never: empty operands are refused."""
        return False

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


@dataclass(frozen=True)
class FromNvfp4(Problem):
    """One call: ``code * (scale * decode_scale)``."""

    operands: ClassVar[tuple[str, ...]] = ("packed_tensor", "scale_tensor", "decode_scale")
    format: ClassVar[BlockFormat] = NVFP4

    packed_tensor: TensorSpec
    scale_tensor: TensorSpec
    decode_scale: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call; there are no options."""
        del options
        pairs, scales, decode = (spec for spec in operands if spec is not None)
        _require_matrix(pairs, 2)
        require_dtype(pairs, *_PAIRS)
        require_dtype(scales, "float8_e4m3fn")
        require_shape(scales, (1, pairs.shape[1], pairs.shape[2] // 8), "(1, M, K/16)")
        require_contiguous(pairs, scales)
        _require_factor(decode)
        require_same_device(pairs, scales, decode)
        return cls(pairs, scales, decode)

    @property
    def codes(self) -> TensorSpec:
        """What is dequantised."""
        return self.packed_tensor

    @property
    def scales(self) -> TensorSpec:
        """Its scales."""
        return self.scale_tensor

    @property
    def factor(self) -> TensorSpec:
        """What multiplies them."""
        return self.decode_scale

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """bfloat16 (1, M, K)."""
        _, rows, half = self.packed_tensor.shape
        shape = (1, rows, 2 * half)
        return (TensorSpec(shape, contiguous_strides(shape), dtype("bfloat16"), self.device, 16, "output_tensor"),)

    @property
    def degenerate(self) -> bool:
        """Never: empty operands are refused."""
        return False

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _require_matrix(spec: TensorSpec, per_byte: int) -> None:
    spec.require_rank(3, "(1, M, columns)")
    batch, rows, columns = spec.shape[0], spec.shape[1], spec.shape[2] * per_byte
    if batch != 1 or rows < 1 or rows % 128 or columns < 1 or columns % 64 or columns > _MOST_COLUMNS:
        raise ShapeError(
            spec.name,
            got=f"{batch} x {rows} x {columns} elements",
            wanted=f"1 x M x K, M a multiple of 128, K a multiple of 64 up to {_MOST_COLUMNS}",
            remedy="pad with zeros, or use block_scale_quantize and _dequantize, which take any extents",
        )


def _require_factor(spec: TensorSpec) -> None:
    if spec.shape != (1, 1, 1):
        raise ShapeError(spec.name, got=str(spec.shape), wanted="(1, 1, 1)", remedy="reshape it")
    require_dtype(spec, "float32")


def _quantizing(problem: Any, where: Device) -> QuantizeSpec:
    return quantize_kernel(problem, problem.encode_scale, where, "converter", None)


def _dequantizing(problem: Any, where: Device) -> DequantizeSpec:
    return dequantize_kernel(problem, where, columns=False, packed=True)


def _kernels(folder: str, specialise: Any) -> tuple[Kernel, ...]:
    return (
        Kernel(
            backend="portable",
            module=f"cudnn_fe.core.block_scale.{folder}.portable",
            refuse=portable_refusal,
            specialise=specialise,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    )


EXAMPLE = """\
import ml_dtypes
import numpy as np
from cudnn_fe.core.block_scale import nvfp4_block_scale_dequantize, nvfp4_block_scale_quantize

x = np.random.default_rng(0).standard_normal((1, 128, 256)).astype(ml_dtypes.bfloat16)
one = np.ones((1, 1, 1), np.float32)
packed, scales = nvfp4_block_scale_quantize(x, one)
y = nvfp4_block_scale_dequantize(packed, scales, one)
assert np.abs(y.astype(np.float32) - x.astype(np.float32)).max() < 0.7
"""

TO_NVFP4 = Op(
    name="nvfp4_block_scale_quantize",
    package="cudnn-fe-core",
    problem=ToNvfp4,
    reference="cudnn_fe.core.block_scale.nvfp4_reference:to_nvfp4",
    kernels=_kernels("quantizer", _quantizing),
    summary="bfloat16 rows to NVFP4 with packed scales.",
    formula=r"s = \operatorname{cvt}(\max |x e| / 6), \qquad c = \operatorname{cvt}(x e \cdot \min(1 / s, "
    r"\mathrm{FLT\_MAX}))",
    tensors=(
        TensorRule("input_tensor", "(1, M, K)", "contiguous", ("bfloat16",), "M % 128 == 0, K % 64 == 0, K <= 16384"),
        TensorRule("encode_scale", "(1, 1, 1)", "-", ("float32",), "e, positive"),
        TensorRule("packed_tensor", "(1, M, K/2)", "contiguous", _PAIRS, "codes in pairs"),
        TensorRule(
            "scale_tensor", "(1, M, K/16)", "contiguous", ("float8_e4m3fn",), "scales in the packed 128x4 order"
        ),
    ),
    example=EXAMPLE,
    source="The converter of cudnn-frontend 1.32 with exact reciprocals.",
    notes=("The recipe `converter` of `cudnn_fe.core.block_scale.quantize`, bit for bit on every backend.",),
    results=("packed_tensor", "scale_tensor"),
    autocast=False,
    legacy=("Nvfp4BlockScaleQuantizer",),
    jax_name="nvfp4_block_scale_quantize",
)
FROM_NVFP4 = Op(
    name="nvfp4_block_scale_dequantize",
    package="cudnn-fe-core",
    problem=FromNvfp4,
    reference="cudnn_fe.core.block_scale.nvfp4_reference:from_nvfp4",
    kernels=_kernels("dequantizer", _dequantizing),
    summary="NVFP4 with packed scales to bfloat16 rows.",
    formula=r"y = \operatorname{bf16}(c \cdot (s \cdot d))",
    tensors=(
        TensorRule("packed_tensor", "(1, M, K/2)", "contiguous", _PAIRS, "codes in pairs"),
        TensorRule(
            "scale_tensor", "(1, M, K/16)", "contiguous", ("float8_e4m3fn",), "scales in the packed 128x4 order"
        ),
        TensorRule("decode_scale", "(1, 1, 1)", "-", ("float32",), "d"),
        TensorRule("output_tensor", "(1, M, K)", "contiguous", ("bfloat16",), "the numbers"),
    ),
    example=EXAMPLE,
    source="The converter of cudnn-frontend 1.32.",
    notes=("Each product is rounded to float32, the last to bfloat16; the same bits on every backend.",),
    results=("output_tensor",),
    autocast=False,
    legacy=("Nvfp4BlockScaleDequantizer",),
    jax_name="nvfp4_block_scale_dequantize",
)
