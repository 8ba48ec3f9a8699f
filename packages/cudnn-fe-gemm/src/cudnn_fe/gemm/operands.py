"""Rules that every dense GEMM of this family shares: A (M, K, L) and B (N, K, L), each contiguous along one dim."""

from __future__ import annotations

from typing import Any, Literal

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import DTypeError, OptionError, StrideError
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = [
    "OPERAND_LAYOUT",
    "major_of",
    "matrix_output",
    "require_major",
    "require_matrices",
    "stack_calls",
]

OPERAND_LAYOUT = "contiguous along the row or the column dim; any other strides"


def require_major(spec: TensorSpec, layout: str) -> None:
    """Raises StrideError unless one of the two matrix dims is contiguous."""
    if spec.size and not (spec.dense_in(0) or spec.dense_in(1)):
        raise StrideError(
            spec.name,
            got=f"strides {spec.strides} for shape {spec.shape}",
            wanted=f"stride 1 along one of the first two dims of {layout}",
            remedy="lay the batch dim out outermost, e.g. allocate (L, rows, columns) and permute",
        )


def require_matrices(a: TensorSpec, b: TensorSpec, dtypes: tuple[str, ...]) -> tuple[int, int, int, int]:
    """Validate A and B and return (M, N, K, L)."""
    a.require_rank(3, "(M, K, L)")
    b.require_rank(3, "(N, K, L)")
    (m, k, batch), n = a.shape, b.shape[0]
    require_shape(b, (n, k, batch), "(N, K, L)")
    require_dtype(a, *dtypes)
    if b.dtype != a.dtype:
        raise DTypeError(
            b.name, got=str(b.dtype), wanted=f"{a.dtype}, the dtype of {a.name}", remedy="cast one of the operands"
        )
    require_same_device(a, b)
    require_major(a, "(M, K, L)")
    require_major(b, "(N, K, L)")
    return m, n, k, batch


def matrix_output(
    name: str, m: int, n: int, batch: int, *, major: Literal["m", "n"], dtype: DType, device: str
) -> TensorSpec:
    """A compact (M, N, L) result, batch outermost, contiguous along ``major``."""
    order = (1, 0, 2) if major == "n" else (0, 1, 2)
    return TensorSpec((m, n, batch), contiguous_strides((m, n, batch), order), dtype, device, 16, name)


def major_of(value: Any, name: str) -> Literal["m", "n"]:
    """Raises OptionError unless ``value`` is ``"m"`` or ``"n"``."""
    if value == "m":
        return "m"
    if value == "n":
        return "n"
    raise OptionError(name, got=repr(value), wanted='"m" or "n"', remedy="name the contiguous dim of the outputs")


def stack_calls(spec: TensorSpec, size: int) -> TensorSpec:
    """An (X, Y, 1) operand of ``size`` calls, stacked outermost in memory as (X, Y, size)."""
    rows, columns, _ = spec.shape
    return TensorSpec(
        (rows, columns, size), (*spec.strides[:2], rows * columns), spec.dtype, spec.device, spec.alignment, spec.name
    )
