"""Rules that the grouped GEMMs share: rows in one buffer, their experts' ends, and the experts' weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cudnn_fe.core.arrays import counting
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, ShapeError, StrideError
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import (
    require_aligned,
    require_contiguous,
    require_dtype,
    require_same_device,
    require_shape,
)
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = [
    "FLOATS",
    "GROUP_NOTES",
    "MOST_EXPERTS",
    "GroupedRows",
    "output",
    "output_dtype",
    "require_addresses",
    "require_bias",
    "require_experts",
    "require_multiple",
    "require_rows",
    "row_fields",
]

FLOATS = ("bfloat16", "float16", "float32")
MOST_EXPERTS = 1024
GROUP_NOTES = (
    "Groups may have any size: ends need not be multiples of 256, empty groups may stand anywhere, and rows past the "
    "last end are neither read nor written; results hold zeros there where no buffer is given. Offsets stay on the "
    "device.",
    "Sums are float32; every result is rounded once. Bit-equal from run to run; no atomics.",
    "Discrete weights (`b_ptrs`) are read where the addresses say: device memory for CUDA tensors, host memory for "
    "others. The caller keeps that memory alive. No address may be 0. A reference reads the addresses on the host.",
    "Accepted beyond the vendor: any M, float16 and float32 operands, dense weights in JAX, NumPy arrays.",
)


@dataclass(frozen=True)
class GroupedRows(Problem):
    """Rows of all experts, one expert after another, each row times its expert's weights.

    Attributes:
        a_tensor: (M, K) rows.
        b_tensor: (L, N, K) weights; or (L,) int64, or (8 L,) uint8, addresses of (N, K) matrices.
        padded_offsets: (L,) ends.
        alpha_tensor: (L,) scales.
        prob_tensor: (M,) gates of the rows, or None for 1.
        n: N of weights behind addresses; 0 for dense ones.
        n_major: Whether those lie (K, N) in memory, N contiguous.
        zero_tail: Whether rows past the last end become zeros; else results keep what they held.
    """

    optional: ClassVar[frozenset[str]] = frozenset({"prob_tensor", "bias_tensor"})
    kept: ClassVar[frozenset[str]] = frozenset({"alpha_tensor", "beta_tensor", "prob_tensor", "c_tensor"})
    of_rows: ClassVar[tuple[int, ...]] = ()  # results of one row for each row of A

    a_tensor: TensorSpec
    b_tensor: TensorSpec
    padded_offsets: TensorSpec
    alpha_tensor: TensorSpec
    prob_tensor: TensorSpec | None
    n: int
    n_major: bool
    zero_tail: bool

    @property
    def discrete(self) -> bool:
        """Whether the weights are addresses."""
        return self.n > 0

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """(M, N, K, L)."""
        m, k = self.a_tensor.shape
        return m, self.n or self.b_tensor.shape[1], k, self.padded_offsets.shape[0]

    @property
    def degenerate(self) -> bool:
        """Nothing to multiply."""
        return 0 in self.extents

    @property
    def flops(self) -> int:
        """2 M N K, as if the groups filled the buffer; what an epilogue adds is not counted."""
        m, n, k, _ = self.extents
        return 2 * m * n * k

    def written(self, xp: Any, operands: tuple[Any, ...]) -> Mapping[int, Any]:
        """Rows up to the last end."""
        m = self.a_tensor.shape[0]
        ends = operands[self.operands.index("padded_offsets")]
        inside = counting(xp, m, ends) < ends[-1]
        specs = self.outputs
        return {
            place: xp.reshape(inside, (m, *(1,) * (specs[place].ndim - 1)))
            for place in self.of_rows
            if specs[place].shape[0] == m
        }


def row_fields(
    *operands: TensorSpec | None,
    options: Mapping[str, Any],
    dtypes: tuple[str, ...],
    prob_dtypes: tuple[str, ...] = ("float32",),
) -> dict[str, Any]:
    """Validate A, B, offsets, alpha and prob, and return the fields of `GroupedRows`."""
    a, b, offsets, alpha, prob = operands
    assert a is not None
    assert b is not None
    assert offsets is not None
    assert alpha is not None
    a.require_rank(2, "(M, K)")
    require_dtype(a, *dtypes)
    require_contiguous(a)
    count = require_experts(offsets)
    n, n_major = options.get("n", 0), bool(options.get("n_major", False))
    if n:
        require_addresses(b, count, "b_ptrs")
    else:
        _require_dense(a, b, count, dtypes)
    require_rows(alpha, (count,), "(L,)", "float32")
    if prob is not None:
        require_rows(prob, a.shape[:1], "(M,)", *prob_dtypes)
    require_same_device(a, b, offsets, alpha, prob)
    return {
        "a_tensor": a,
        "b_tensor": b,
        "padded_offsets": offsets,
        "alpha_tensor": alpha,
        "prob_tensor": prob,
        "n": n,
        "n_major": n_major,
        "zero_tail": bool(options.get("zero_tail", True)),
    }


def _require_dense(a: TensorSpec, b: TensorSpec, count: int, dtypes: tuple[str, ...]) -> None:
    b.require_rank(3, "(L, N, K)")
    require_dtype(b, *dtypes)
    require_shape(b, (count, b.shape[1], a.shape[1]), "(L, N, K)")
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


def require_addresses(spec: TensorSpec, count: int, name: str) -> None:
    """Raises unless ``spec`` is a contiguous array of ``count`` addresses: int64, or eight bytes each."""
    if spec.dtype.name not in ("int64", "uint8"):
        raise DTypeError(name, got=str(spec.dtype), wanted="int64, or uint8 with 8 bytes each", remedy="view the bytes")
    extent = count if spec.dtype.name == "int64" else 8 * count
    if spec.shape != (extent,):
        raise ShapeError(
            name, got=str(spec.shape), wanted=f"{(extent,)}: an address for each expert", remedy="pass all experts"
        )
    named = replace(spec, name=name)
    require_contiguous(named)
    require_aligned(named, nbytes=8)


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


def require_bias(bias: TensorSpec | None, n: int, count: int) -> None:
    """Raises unless a bias is (N, L) of an unscaled type."""
    if bias is not None:
        require_shape(bias, (n, count), "(N, L)")
        require_dtype(bias, *FLOATS)


def require_multiple(name: str, n: int, of: int, meaning: str) -> None:
    """Raises ShapeError unless ``n`` is a multiple."""
    if n % of:
        raise ShapeError(
            name, got=f"N = {n}", wanted=f"a multiple of {of}: {meaning}", remedy="pad the weights to whole blocks"
        )


def output(name: str, shape: tuple[int, ...], kind: DType | str, device: str) -> TensorSpec:
    """A compact row-major result."""
    return TensorSpec(shape, contiguous_strides(shape), dtype(kind), device, 16, name)


def output_dtype(given: Any, name: str, allowed: tuple[str, ...] = FLOATS) -> DType:
    """The dtype of a result; raises unless it is one of ``allowed``."""
    kind = dtype(given, operand=name)
    if kind.name not in allowed:
        raise DTypeError(name, got=str(kind), wanted=" or ".join(allowed), remedy="choose a listed dtype")
    return kind
