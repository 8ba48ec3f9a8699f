"""Rules that the grouped GEMMs share: rows in one buffer, their experts' ends, and the experts' weights."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, NotYetSupportedError, ShapeError, StrideError
from cudnn_fe.core.require import require_contiguous, require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = [
    "FLOATS",
    "MOST_EXPERTS",
    "output",
    "output_dtype",
    "require_experts",
    "require_float",
    "require_rows",
    "require_weights",
]

FLOATS = ("bfloat16", "float16", "float32")
MOST_EXPERTS = 1024


def require_float(spec: TensorSpec) -> None:
    """Raises unless the elements are of an unscaled type; the scaled ones are documented, but not served yet."""
    if spec.dtype.bits <= 8 and spec.dtype.kind in ("float", "uint"):
        raise NotYetSupportedError(
            spec.name,
            got=str(spec.dtype),
            wanted=" or ".join(FLOATS),
            remedy="dequantise to bfloat16, which holds MXFP8, MXFP4 and NVFP4 values",
        )
    require_dtype(spec, *FLOATS)


def require_rows(spec: TensorSpec, shape: tuple[int, ...], layout: str, *dtypes: str) -> None:
    """Raises unless an operand has that shape, is contiguous and holds one of ``dtypes``."""
    require_shape(spec, shape, layout)
    require_contiguous(spec)
    require_dtype(spec, *dtypes)


def require_experts(offsets: TensorSpec) -> int:
    """Validate the ends of the groups and return L."""
    offsets.require_rank(1, "(L,)")
    count = offsets.shape[0]
    if not 1 <= count <= MOST_EXPERTS:
        raise ShapeError(
            offsets.name, got=f"L = {count}", wanted=f"1 to {MOST_EXPERTS} experts", remedy="split the call by experts"
        )
    require_rows(offsets, (count,), "(L,)", "int32")
    return count


def require_weights(a: TensorSpec, b: TensorSpec, offsets: TensorSpec) -> tuple[int, int, int, int]:
    """Validate rows (M, K), weights (L, N, K) and offsets (L,), and return (M, N, K, L)."""
    a.require_rank(2, "(M, K)")
    b.require_rank(3, "(L, N, K)")
    require_float(a)
    require_float(b)
    (m, k), n, count = a.shape, b.shape[1], require_experts(offsets)
    require_contiguous(a)
    require_shape(b, (count, n, k), "(L, N, K)")
    if b.dtype != a.dtype:
        raise DTypeError(
            b.name, got=str(b.dtype), wanted=f"{a.dtype}, the dtype of {a.name}", remedy="cast one of the operands"
        )
    if b.size and not (b.dense_in(1) or b.dense_in(2)):
        raise StrideError(
            b.name,
            got=f"strides {b.strides}",
            wanted="stride 1 along N or K of (L, N, K)",
            remedy="make the weights contiguous",
        )
    require_same_device(a, b, offsets)
    return m, n, k, count


def output(name: str, shape: tuple[int, ...], kind: DType | str, device: str) -> TensorSpec:
    """A compact row-major result."""
    return TensorSpec(shape, contiguous_strides(shape), dtype(kind), device, 16, name)


def output_dtype(given: Any, name: str) -> DType:
    """The dtype of a result; raises unless it is one of `FLOATS`."""
    kind = dtype(given, operand=name)
    if kind.is_fp8:
        raise NotYetSupportedError(name, got=str(kind), wanted=" or ".join(FLOATS), remedy="quantise the result")
    if kind.name not in FLOATS:
        raise DTypeError(name, got=str(kind), wanted=" or ".join(FLOATS), remedy="choose a listed dtype")
    return kind
