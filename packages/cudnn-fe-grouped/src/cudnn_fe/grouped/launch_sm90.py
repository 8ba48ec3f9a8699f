"""The parts that the Hopper kernels of this family share: operand lists and their stand-ins."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.gemm_layout import GroupTables, RowGroups
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.epilogues_sm90 import Factors
from cudnn_fe.grouped.kernel_spec import RowsSpec

__all__ = [
    "addresses",
    "fake_forward",
    "fake_vector",
    "fake_weights",
    "forward_parts",
    "row_groups",
    "row_tables",
    "tensors_and_scalars",
    "written",
]


def fake_vector(kind: str) -> Any:
    """A contiguous vector, aligned to its elements."""
    return fake_tensor(kind, 0, rank=1, alignment=dtype(kind).itemsize)


def written(spec: RowsSpec) -> tuple[str, ...]:
    """Element types of the results that a forward writes: D, and C where it is wanted."""
    return spec.gemm.out_dtypes[: 2 if "c" in spec.wanted else 1]


def fake_forward(spec: RowsSpec) -> tuple[Any, ...]:
    """Stand-ins for rows, weights, ends, alpha, prob and bias where there are, and the outputs."""
    gemm = spec.gemm
    bias = [] if spec.bias_dtype is None else [spec.bias_dtype]
    return (
        fake_tensor(gemm.a_dtype, 1, rank=2),
        fake_weights(spec),
        fake_vector("int32"),
        *((fake_vector("float32"),) if spec.alpha else ()),
        *((fake_vector("float32"),) if spec.prob else ()),
        *(fake_tensor(kind, -1, rank=2, alignment=dtype(kind).itemsize) for kind in bias),
        *(fake_tensor(kind, 1, rank=2) for kind in gemm.out_dtypes),
    )


def tensors_and_scalars(
    arguments: tuple[Any, ...], scalars: dict[str, Any], count: int
) -> tuple[tuple[cute.Tensor, ...], tuple[Any, ...]]:
    """A launch's tensors and its `count` scalars, which JAX passes by name and a compiled function by position."""
    if scalars:
        return arguments, tuple(scalars.values())
    return arguments[:-count], arguments[-count:]


def addresses(pointers: cute.Tensor, count: Any) -> cute.Tensor:
    """(L,) int64 of as many addresses, which may come as eight bytes each."""
    return cute.make_tensor(cute.recast_ptr(pointers.iterator, dtype=Int64), cute.make_layout(Int32(count)))


def row_groups(spec: RowsSpec) -> RowGroups:
    """The layout of rows in groups."""
    return RowGroups(spec.zero_tail, spec.addresses is not None)


def row_tables(
    spec: RowsSpec, a: cute.Tensor, b: cute.Tensor, offsets: cute.Tensor, n: Any, outs: tuple[cute.Tensor, ...]
) -> tuple[cute.Tensor, GroupTables]:
    """B and the tables as `row_groups` wants them; N is `n`."""
    tails = outs if spec.zero_tail else ()
    if spec.addresses is None:
        return b, GroupTables(offsets, tails)
    n, k = Int32(n), Int32(a.shape[1])
    strides = (Int64(k), 1) if spec.gemm.b_major == "k" else (1, Int64(n))
    matrix = cute.make_tensor(a.iterator, cute.make_layout((n, k), stride=strides))
    return matrix, GroupTables(offsets, tails, addresses(b, offsets.shape[0]), a.iterator.toint())


def fake_weights(spec: RowsSpec) -> Any:
    """A stand-in for (L, N, K) weights, or for (L,) addresses."""
    if spec.addresses is not None:
        return fake_tensor(spec.addresses, 0, rank=1, alignment=8)
    return fake_tensor(spec.gemm.b_dtype, 2 if spec.gemm.b_major == "k" else 1)


def forward_parts(
    spec: RowsSpec, tensors: tuple[cute.Tensor, ...], wide: int = 1, offset: Any = 0.0
) -> tuple[Any, ...]:
    """``(a, b, written outputs, factors, tables)`` from a launch's tensors, in `fake_forward`'s order.

    Args:
        spec: The kernel's.
        tensors: A launch's.
        wide: Columns of the product for each column of D.
        offset: GeGLU's.
    """
    a, b, offsets, *rest = tensors
    alpha = rest.pop(0) if spec.alpha else ()
    prob = rest.pop(0) if spec.prob else ()
    bias = () if spec.bias_dtype is None else rest.pop(0)
    outs = tuple(rest[: len(written(spec))])
    b, tables = row_tables(spec, a, b, offsets, wide * outs[0].shape[1], outs)
    return a, b, outs, Factors(alpha, prob, bias, Float32(offset)), tables
