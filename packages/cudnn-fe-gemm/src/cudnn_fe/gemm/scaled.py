"""Rules that the block-scaled GEMMs share: quantised A and B with packed scale factors, and results with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.block_scale import BlockFormat, block_format, scale_shape
from cudnn_fe.core.block_scale.specs import PACKED_LAYOUT, atom_spec, is_atom_form, require_packed
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.require import require_dtype, require_same_device
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.operands import major_of, matrix_output, require_matrices
from cudnn_fe.gemm.problem import GemmProblem

__all__ = [
    "ELEMENTS",
    "FLOATS",
    "PACKED_LAYOUT",
    "RESULTS",
    "SCALES",
    "QuantisingProblem",
    "ScaledGemmProblem",
    "is_atom_form",
    "is_fp4",
    "quantising_fields",
    "require_float32",
    "require_result",
    "require_scaled",
]

FP4 = ("float4_e2m1fn", "uint8")
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", *FP4)
SCALES = ("float8_e8m0fnu", "float8_e4m3fn")
FLOATS = ("float32", "float16", "bfloat16")
RESULTS = (*FLOATS, "float8_e4m3fn", "float8_e5m2")


def is_fp4(kind: DType) -> bool:
    """Whether an operand of this type holds packed FP4 pairs."""
    return kind.name in FP4


@dataclass(frozen=True)
class ScaledGemmProblem(GemmProblem):
    """A GEMM of quantised operands. FP4 operands are packed: their second extent counts bytes."""

    operands: ClassVar[tuple[str, ...]] = ("a", "b", "sfa", "sfb")

    sfa: TensorSpec
    sfb: TensorSpec
    sf_vec_size: int

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """(M, N, K, L), K in elements."""
        per_byte = 2 if is_fp4(self.a.dtype) else 1
        return (self.a.shape[0], self.b.shape[0], per_byte * self.a.shape[1], self.a.shape[2])

    @property
    def format(self) -> BlockFormat:
        """How the operands are quantised."""
        return block_format(self.a.dtype.name, self.sfa.dtype.name, self.sf_vec_size)

    def batched(self, size: int) -> Self | None:
        """None: packed scale factors have no dim to stack calls along without moving them."""
        del size
        return None


@dataclass(frozen=True)
class QuantisingProblem(ScaledGemmProblem):
    """A GEMM of quantised operands whose last matrix may be quantised again, and has an amax."""

    optional: ClassVar[frozenset[str]] = frozenset({"norm_const"})
    scales_name: ClassVar[str] = "sfd_tensor"
    columns_per_result: ClassVar[int] = 1  # columns of the product for each of the last matrix

    norm_const: TensorSpec | None
    major: Literal["m", "n"]
    result_dtype: DType
    scales_atom: bool
    amax_shape: tuple[int, ...]

    @property
    def out_major(self) -> Literal["m", "n"]:
        """Contiguous dim of the results."""
        return self.major

    @property
    def result_format(self) -> BlockFormat | None:
        """How the last matrix is quantised, if it is."""
        if not self.result_dtype.is_fp8:
            return None
        return block_format(self.result_dtype.name, self.sfa.dtype.name, self.sf_vec_size)

    def matrix(self, name: str, kind: DType, columns: int | None = None) -> TensorSpec:
        """A result (M, columns, L), N columns unless told."""
        m, n, _, batch = self.extents
        width = n if columns is None else columns
        return matrix_output(name, m, width, batch, major=self.major, dtype=kind, device=self.device)

    @property
    def amax_output(self) -> TensorSpec:
        """The largest magnitude of the unrounded result."""
        strides = contiguous_strides(self.amax_shape)
        return TensorSpec(self.amax_shape, strides, dtype("float32"), self.device, 16, "amax_tensor")

    @property
    def scales_output(self) -> TensorSpec:
        """The scales of a quantised result; of another, no element."""
        if self.result_format is None:
            return TensorSpec((0,), (1,), dtype("uint8"), self.device, 16, self.scales_name)
        m, n, _, batch = self.extents
        shape = scale_shape(m, -(-n // self.columns_per_result // self.sf_vec_size), batch)
        spec = TensorSpec(shape, contiguous_strides(shape), self.sfa.dtype, self.device, 16, self.scales_name)
        return atom_spec(spec) if self.scales_atom else spec


def quantising_fields(
    operands: tuple[TensorSpec | None, ...],
    norm_const: TensorSpec | None,
    options: dict[str, Any],
    names: tuple[str, str],
) -> dict[str, Any]:
    """Validate what these problems take and return the fields of `QuantisingProblem`.

    Args:
        operands: A, B, SFA, SFB.
        norm_const: The factor, or None.
        options: Those of the call.
        names: What messages call the options ``major`` and ``result_dtype``.
    """
    a, b, sfa, sfb = operands
    assert a is not None
    assert b is not None
    assert sfa is not None
    assert sfb is not None
    require_float32(options["acc_dtype"])
    require_scaled(a, b, sfa, sfb, options["sf_vec_size"])
    kind = require_result(options["result_dtype"], names[1])
    if kind.is_fp8 and is_fp4(a.dtype):
        raise DTypeError(names[1], got=str(kind), wanted="no FP8 result of FP4 operands", remedy="ask for bfloat16")
    if kind.is_fp8 and norm_const is None:
        wanted = f"a factor for a {kind} result"
        raise OptionError("norm_const_tensor", got="None", wanted=wanted, remedy="pass a float32 array of one 1")
    if norm_const is not None:
        require_dtype(norm_const, "float32")
        require_same_device(a, norm_const)
        if norm_const.size != 1:
            raise ShapeError(norm_const.name, got=str(norm_const.shape), wanted="(1,)", remedy="pass one factor")
    return {
        "a": a,
        "b": b,
        "sfa": sfa,
        "sfb": sfb,
        "sf_vec_size": options["sf_vec_size"],
        "norm_const": norm_const,
        "major": major_of(options["major"], names[0]),
        "result_dtype": kind,
        "scales_atom": options["scales_atom"],
        "amax_shape": tuple(options["amax_shape"]),
    }


def require_result(given: Any, name: str) -> DType:
    """The dtype of a result; raises DTypeError unless it is one of `RESULTS`."""
    kind = dtype(given, operand=name)
    if kind.name not in RESULTS:
        wanted = f"one of {', '.join(RESULTS)}"
        raise DTypeError(name, got=str(kind), wanted=wanted, remedy="choose a listed output dtype")
    return kind


def require_float32(acc_dtype: Any) -> None:
    """Raises DTypeError unless sums are asked for in float32."""
    found = dtype(acc_dtype, operand="acc_dtype")
    if found.name != "float32":
        raise DTypeError("acc_dtype", got=str(found), wanted="float32", remedy="leave acc_dtype at its default")


def require_scaled(
    a: TensorSpec, b: TensorSpec, sfa: TensorSpec, sfb: TensorSpec, sf_vec_size: Any, scales: tuple[str, ...] = SCALES
) -> tuple[int, int, int, int]:
    """Validate quantised operands and return (M, N, K, L), K in elements."""
    if not isinstance(sf_vec_size, int) or sf_vec_size not in (16, 32):
        raise OptionError("sf_vec_size", got=repr(sf_vec_size), wanted="16 or 32", remedy="pass the block's extent")
    m, n, k, batch = require_matrices(a, b, ELEMENTS)
    require_dtype(sfa, *scales, remedy="view the bytes as the format they are")
    if sfb.dtype != sfa.dtype:
        raise DTypeError(sfb.name, got=str(sfb.dtype), wanted=f"{sfa.dtype}, as {sfa.name}", remedy="use one format")
    block_format(a.dtype.name, sfa.dtype.name, sf_vec_size)
    if is_fp4(a.dtype):
        for spec in (a, b):
            if not spec.dense_in(1):
                raise StrideError(
                    spec.name,
                    got=f"strides {spec.strides}",
                    wanted="FP4 pairs contiguous along K",
                    remedy="pack along K",
                )
        k *= 2
    columns = -(-k // sf_vec_size)
    require_same_device(a, sfa, sfb)
    require_packed(sfa, m, columns, batch)
    require_packed(sfb, n, columns, batch)
    return m, n, k, batch
