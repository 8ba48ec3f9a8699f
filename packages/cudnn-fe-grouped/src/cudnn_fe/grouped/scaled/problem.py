"""Rules of the block-scaled grouped GEMMs: quantised rows and weights, packed scales, results that may have them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cudnn_fe.core.block_scale import BlockFormat, block_format, scale_shape
from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.require import require_contiguous, require_dtype, require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import FLOATS, GroupedRows, output, output_dtype, require_addresses, row_fields

__all__ = [
    "ELEMENTS",
    "FP8",
    "PACKED",
    "RESULTS",
    "SCALES",
    "ScaledRows",
    "is_fp4",
    "packed_size",
    "require_block",
    "require_scales",
    "scaled_fields",
]

FP8 = ("float8_e4m3fn", "float8_e5m2")
_FP4 = ("float4_e2m1fn", "uint8")
ELEMENTS = (*FP8, *_FP4)
SCALES = ("float8_e8m0fnu", "float8_e4m3fn", "uint8", "int8")  # whole bytes are E8M0
RESULTS = (*FLOATS, *FP8)
PACKED = "512-byte atoms of 128 rows and 4 scales: physical form, atom view, or the same bytes in any shape"


def is_fp4(kind: DType) -> bool:
    """Whether elements of this type are packed FP4 pairs."""
    return kind.name in _FP4


@dataclass(frozen=True)
class ScaledRows(GroupedRows):
    """Quantised rows times their expert's quantised weights. FP4 extents along K count bytes.

    Attributes:
        sfa_tensor: Scales of A, flat.
        sfb_tensor: Scales of the weights, flat; or the addresses of each expert's.
        norm_const_tensor: (1,) factor of quantised results, or None.
        sf_vec_size: Elements per scale.
        d_dtype: Of the result.
        quantised: Whether the result has scales, along its rows and along its columns.
        expert_columns: Whether the column scales are packed expert by expert.
        keep_amax: Whether each expert's largest magnitude is a result.
        single_group: Whether all rows belong to the one expert, whatever the offsets say.
    """

    kept: ClassVar[frozenset[str]] = GroupedRows.kept | {"norm_const_tensor", "row_scale_tensor"}
    amax_start: ClassVar[float] = -math.inf  # what amax is without rows

    sfa_tensor: TensorSpec
    sfb_tensor: TensorSpec
    norm_const_tensor: TensorSpec | None
    sf_vec_size: int
    d_dtype: DType
    quantised: bool
    expert_columns: bool
    keep_amax: bool
    single_group: bool

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """(M, N, K, L), K in elements."""
        m, n, k, count = super().extents
        return m, n, 2 * k if is_fp4(self.a_tensor.dtype) else k, count

    @property
    def format(self) -> BlockFormat:
        """How the operands are quantised."""
        return block_format(self.a_tensor.dtype.name, self.sfa_tensor.dtype.name, self.sf_vec_size)

    def written(self, xp: Any, operands: tuple[Any, ...]) -> Mapping[int, Any]:
        """Rows up to the last end."""
        return {} if self.single_group else super().written(xp, operands)

    def quantised_outputs(self, width: int, *, amaxes: int = 1) -> dict[str, TensorSpec]:
        """D by columns, amax and the scales by name; without elements where they are not wanted."""
        m, count, place = self.a_tensor.shape[0], self.padded_offsets.shape[0], self.device
        amax = (count if self.keep_amax else 0, *((1,) if amaxes == 1 else (amaxes, 1)))
        found = {
            "d_col_tensor": output("d_col_tensor", (m if self.quantised else 0, width), self.d_dtype, place),
            "amax_tensor": output("amax_tensor", amax, "float32", place),
        }
        return found | {
            name: self.scale_output(name, rows, extent)
            for name, rows, extent in (("sfd_row_tensor", m, width), ("sfd_col_tensor", width, m))
        }

    def scale_output(self, name: str, rows: int, extent: int) -> TensorSpec:
        """Packed scales of ``rows`` rows of blocks along ``extent``."""
        shape: tuple[int, ...] = scale_shape(rows, -(-extent // self.sf_vec_size)) if self.quantised else (0,)
        return output(name, shape, "float8_e8m0fnu", self.device)


def packed_size(rows: int, extent: int, block: int, matrices: int = 1) -> int:
    """Bytes of the packed scales of ``rows`` rows of blocks along ``extent``."""
    size = 512 * matrices
    for count in scale_shape(rows, -(-extent // block))[1:3]:
        size *= count
    return size


def require_block(sf_vec_size: Any) -> None:
    """Raises OptionError unless blocks have a documented extent."""
    if not isinstance(sf_vec_size, int) or sf_vec_size not in (16, 32):
        raise OptionError("sf_vec_size", got=repr(sf_vec_size), wanted="16 or 32", remedy="pass the block's extent")


def require_scales(spec: TensorSpec, size: int, described: str) -> None:
    """Raises unless ``spec`` holds exactly that many packed scales, flat."""
    require_dtype(spec, *SCALES)
    if spec.shape != (size,):
        raise ShapeError(
            spec.name,
            got=f"{spec.size} scales",
            wanted=f"{size}: whole atoms for {described}",
            remedy="pack plain scales with cudnn_fe.core.block_scale.swizzle_scales",
        )
    require_contiguous(spec)


def scaled_fields(
    *operands: TensorSpec | None, options: Mapping[str, Any], results: tuple[str, ...] = RESULTS
) -> dict[str, Any]:
    """Validate A, B, their scales, offsets, alpha, prob and norm_const; return the fields of `ScaledRows`."""
    a, b, sfa, sfb, offsets, alpha, prob, norm = operands
    fields = row_fields(
        a, b, offsets, alpha, prob, options=options, dtypes=ELEMENTS, prob_dtypes=("float32", "bfloat16")
    )
    assert a is not None
    assert b is not None
    assert sfa is not None
    assert sfb is not None
    assert offsets is not None
    (m, k), n, count, block = a.shape, fields["n"], offsets.shape[0], options["sf_vec_size"]
    require_block(block)
    require_dtype(sfa, *SCALES)
    block_format(a.dtype.name, sfa.dtype.name, block)
    k = 2 * k if is_fp4(a.dtype) else k
    if not n and is_fp4(a.dtype) and b.size and not b.dense_in(2):
        raise StrideError(
            b.name, got=f"strides {b.strides}", wanted="FP4 pairs contiguous along K", remedy="pack along K"
        )
    require_scales(sfa, packed_size(m, k, block), f"{m} rows of {k} elements, {block} per scale")
    if n:
        require_addresses(sfb, count, "sfb_ptrs")
    else:
        rows = b.shape[1]
        require_scales(sfb, packed_size(rows, k, block, count), f"{count} matrices of {rows} rows of {k} elements")
        if sfb.dtype != sfa.dtype:
            raise DTypeError(
                sfb.name, got=str(sfb.dtype), wanted=f"{sfa.dtype}, as {sfa.name}", remedy="use one format"
            )
    require_same_device(a, sfa, sfb, norm)
    kind = output_dtype(options["d_dtype"], "d_dtype", results)
    if kind.is_fp8 and is_fp4(a.dtype):
        raise DTypeError("d_dtype", got=str(kind), wanted="no FP8 result of FP4 operands", remedy="ask for bfloat16")
    quantised = bool(options["quantised"])
    if quantised and is_fp4(a.dtype):
        raise OptionError("quantised", got="True", wanted="False with FP4 operands", remedy="quantise the result")
    _require_norm(norm, kind, needed=quantised)
    single = bool(options["single_group"])
    if single and count != 1:
        raise OptionError(
            "use_single_group_runtime_offsets", got=f"True with {count} experts", wanted="one expert", remedy="leave it"
        )
    return fields | {
        "sfa_tensor": sfa,
        "sfb_tensor": sfb,
        "norm_const_tensor": norm,
        "sf_vec_size": block,
        "d_dtype": kind,
        "quantised": quantised,
        "expert_columns": bool(options["expert_columns"]),
        "keep_amax": bool(options["keep_amax"]),
        "single_group": single,
    }


def _require_norm(norm: TensorSpec | None, kind: DType, *, needed: bool) -> None:
    if norm is None:
        if needed:
            raise OptionError(
                "norm_const_tensor",
                got="None",
                wanted=f"a factor for a {kind} result with scales",
                remedy="pass a float32 array of one 1",
            )
        return
    require_dtype(norm, "float32")
    if norm.size != 1:
        raise ShapeError(norm.name, got=str(norm.shape), wanted="(1,)", remedy="pass one factor")
