"""The contract of quantisation as an op: rows, columns or both, in one call and one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from cudnn_fe.core.block_scale.formats import BlockFormat, block_format
from cudnn_fe.core.block_scale.layouts import scale_shape
from cudnn_fe.core.block_scale.quantize import Recipe, quotient_of
from cudnn_fe.core.block_scale.quantizer.spec import QuantizeSpec
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["QUANTIZE", "BlockQuantize", "quantize_kernel"]

SOURCES = ("float32", "float16", "bfloat16")
_CODES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "uint8")
_SCALES = ("float8_e8m0fnu", "float8_e4m3fn")
_SIDE = 8  # elements of a row that a thread takes together


@dataclass(frozen=True)
class BlockQuantize(Problem):
    """One call: (L, R, C) to codes and scales along rows, along columns, or both, of the same values."""

    operands: ClassVar[tuple[str, ...]] = ("x", "norm")
    optional: ClassVar[frozenset[str]] = frozenset({"norm"})
    output_count: ClassVar[int] = 0

    x: TensorSpec
    norm: TensorSpec | None
    format: BlockFormat
    row_recipe: Recipe | None
    column_recipe: Recipe | None
    packed: bool
    amax: bool
    native: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.core.block_scale.block_scale_quantize`, spelt out."""
        x, norm = operands
        assert x is not None
        format = block_format(options["element"], options["scale"], options["block"])
        recipes = (options["row_recipe"], options["column_recipe"])
        for name, recipe in zip(("recipe", "column_recipe"), recipes, strict=True):
            if recipe is None:
                continue
            require_one_of(recipe, name, get_args(Recipe))
            if recipe == "power_of_two" and (norm is not None or format.scale.mantissa_bits):
                raise OptionError(
                    name, got=repr(recipe), wanted="an E8M0 scale and no norm with it", remedy="use recipe='epilogue'"
                )
        x.require_rank(3, "(L, R, C)")
        require_dtype(x, *SOURCES)
        require_rows(x)
        if norm is not None:
            require_dtype(norm, "float32")
            if norm.size != 1:
                raise ShapeError(norm.name, got=str(norm.shape), wanted="one element", remedy="pass one factor")
        require_same_device(x, norm)
        _, rows, columns = x.shape
        for extent, recipe, what in ((columns, recipes[0], "columns"), (rows, recipes[1], "rows")):
            if recipe is not None and format.element.bits == 4 and extent % 2:
                raise ShapeError(
                    x.name, got=f"{extent} {what}", wanted="an even number for FP4 pairs", remedy="pad with zeros"
                )
        chosen = {name: options[name] for name in ("packed", "amax", "native")}
        return cls(x, norm, format, *recipes, **chosen)

    @property
    def fp4(self) -> bool:
        """Whether codes are pairs in a byte."""
        return self.format.element.bits == 4

    @property
    def codes_dtype(self) -> str:
        """Type of the codes: FP4 pairs in torch, bytes of them elsewhere."""
        return self.format.element.name if self.native or not self.fp4 else "uint8"

    def _output(self, name: str, kind: str, shape: tuple[int, ...]) -> TensorSpec:
        return TensorSpec(shape, contiguous_strides(shape), dtype(kind), self.device, 16, name)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Codes and scales along rows, then along columns, then the largest magnitude: those that were asked for."""
        batch, rows, columns = self.x.shape
        size, pair = self.format.block, 2 if self.fp4 else 1
        found = []
        if self.row_recipe is not None:
            count = -(-columns // size)
            shape = scale_shape(rows, count, batch) if self.packed else (batch, rows, count)
            found.append(self._output("row_codes", self.codes_dtype, (batch, rows, columns // pair)))
            found.append(self._output("row_scales", self.format.scale.name, shape))
        if self.column_recipe is not None:
            count = -(-rows // size)
            shape = scale_shape(columns, count, batch) if self.packed else (batch, count, columns)
            found.append(self._output("column_codes", self.codes_dtype, (batch, rows // pair, columns)))
            found.append(self._output("column_scales", self.format.scale.name, shape))
        if self.amax:
            found.append(self._output("amax", "float32", (1,)))
        return tuple(found)

    @property
    def degenerate(self) -> bool:
        """Nothing to quantise."""
        return self.x.size == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _specialise(problem: Any, where: Device) -> QuantizeSpec:
    return quantize_kernel(problem, problem.norm, where, problem.row_recipe, problem.column_recipe)


def quantize_kernel(
    problem: Any,
    norm: TensorSpec | None,
    where: Device,
    row_recipe: Recipe | None,
    column_recipe: Recipe | None,
) -> QuantizeSpec:
    """The kernel's specialisation for a problem with ``x``, ``format``, ``packed``, ``amax`` and outputs."""
    x: TensorSpec = problem.x
    columns = x.shape[-1]
    codes, scales = problem.outputs[:2]
    return QuantizeSpec(
        x_dtype=x.dtype.name,
        element=problem.format.element.name,
        scale=problem.format.scale.name,
        block=problem.format.block,
        row_recipe=row_recipe,
        row_quotient=quotient_of(problem.format, row_recipe) if row_recipe else 0.0,
        column_recipe=column_recipe,
        column_quotient=quotient_of(problem.format, column_recipe) if column_recipe else 0.0,
        packed=problem.packed,
        codes_dtype=codes.dtype.name,
        scales_rank=scales.ndim,
        norm_rank=None if norm is None else norm.ndim,
        amax=problem.amax,
        x_access=common_power_of_two(max(min(access_bytes(x) // x.dtype.itemsize, _SIDE), 1), columns),
        out_access=common_power_of_two(_SIDE, columns),
        arch=where.arch,
    )


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.core.block_scale.quantizer.portable",
        refuse=portable_refusal,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        verified=("H200",),
    ),
)

EXAMPLE = """\
import numpy as np
from cudnn_fe.core.block_scale import block_scale_dequantize, block_scale_quantize

x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
out = block_scale_quantize(x, "mxfp8_e4m3", direction="both")
y = block_scale_dequantize(out["row_codes"], out["row_scales"], "mxfp8_e4m3")
z = block_scale_dequantize(out["column_codes"], out["column_scales"], "mxfp8_e4m3", direction="columns")
assert np.abs(y - x).max() < 0.3
assert np.abs(z - x).max() < 0.3
"""

QUANTIZE = Op(
    name="block_scale_quantize",
    package="cudnn-fe-core",
    problem=BlockQuantize,
    reference="cudnn_fe.core.block_scale.quantizer.reference:block_quantize",
    kernels=KERNELS,
    summary="Rows, columns or both to MXFP8, MXFP4 or NVFP4, with scales plain or packed.",
    formula=r"s = \operatorname{cvt}(\max |x| \, q \, n), \qquad "
    r"c = \operatorname{cvt}(x \cdot \min(n / s, \mathrm{FLT\_MAX}))",
    tensors=(
        TensorRule("x", "(R, C) or (L, R, C)", "rows contiguous", SOURCES, "what is quantised"),
        TensorRule("norm", "one element", "-", ("float32",), "positive factor, or None"),
        TensorRule("row_codes", "as x; FP4 (.., R, C/2)", "contiguous", _CODES, "blocks along rows"),
        TensorRule("row_scales", "packed, R rows; or (.., R, C/v)", "contiguous", _SCALES, "their scales"),
        TensorRule("column_codes", "as x; FP4 (.., R/2, C)", "contiguous", _CODES, "blocks along columns"),
        TensorRule("column_scales", "packed, C rows; or (.., R/v, C)", "contiguous", _SCALES, "their scales"),
        TensorRule("amax", "()", "-", ("float32",), "largest magnitude of x, NaN if it has one"),
    ),
    example=EXAMPLE,
    source="OCP MX v1.0; recipes as in cudnn-frontend 1.32, with exact reciprocals.",
    notes=(
        "Recipes, rounding and every special value are those of `cudnn_fe.core.block_scale.quantize`, bit for bit on "
        "every backend. Packed scales of rows and columns that do not exist are 0.",
        "FP4 codes are packed in pairs along the direction that they are quantised in.",
    ),
    results=("row_codes", "row_scales", "column_codes", "column_scales", "amax"),
    autocast=False,
    jax_name="block_scale_quantize",
    memory_cases="cudnn_fe.core.block_scale.torch_bench:quantize",
)
