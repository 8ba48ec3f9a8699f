"""The parts that the Hopper kernels of this family share: operand lists and their stand-ins."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.epilogues_sm90 import Factors
from cudnn_fe.grouped.kernel_spec import RowsSpec

__all__ = ["fake_forward", "fake_vector", "forward_parts", "tensors_and_scalars", "written"]


def fake_vector(kind: str) -> Any:
    """A contiguous vector, aligned to its elements."""
    return fake_tensor(kind, 0, rank=1, alignment=dtype(kind).itemsize)


def written(spec: RowsSpec) -> tuple[str, ...]:
    """Element types of the results that a forward writes: D, and C where it is wanted."""
    return spec.gemm.out_dtypes[: 2 if "c" in spec.wanted else 1]


def fake_forward(spec: RowsSpec) -> tuple[Any, ...]:
    """Stand-ins for rows, weights, ends, alpha, prob and bias where there are, and the outputs."""
    gemm = spec.gemm
    bias = (
        ()
        if spec.bias_dtype is None
        else (fake_tensor(spec.bias_dtype, -1, rank=2, alignment=dtype(spec.bias_dtype).itemsize),)
    )
    return (
        fake_tensor(gemm.a_dtype, 1, rank=2),
        fake_tensor(gemm.b_dtype, 2 if gemm.b_major == "k" else 1),
        fake_vector("int32"),
        fake_vector("float32"),
        *((fake_vector("float32"),) if spec.prob else ()),
        *bias,
        *(fake_tensor(kind, 1, rank=2) for kind in gemm.out_dtypes),
    )


def tensors_and_scalars(
    arguments: tuple[Any, ...], scalars: dict[str, Any], count: int
) -> tuple[tuple[cute.Tensor, ...], tuple[Any, ...]]:
    """A launch's tensors and its `count` scalars, which JAX passes by name and a compiled function by position."""
    if scalars:
        return arguments, tuple(scalars.values())
    return arguments[:-count], arguments[-count:]


def forward_parts(spec: RowsSpec, tensors: tuple[cute.Tensor, ...], offset: Any = 0.0) -> tuple[Any, ...]:
    """``(a, b, written outputs, factors, tables)`` from a launch's tensors, in `fake_forward`'s order."""
    a, b, offsets, alpha, *rest = tensors
    prob = rest.pop(0) if spec.prob else ()
    bias = () if spec.bias_dtype is None else rest.pop(0)
    outs = tuple(rest[: len(written(spec))])
    return a, b, outs, Factors(alpha, prob, bias, Float32(offset)), (offsets, *outs) if spec.zero_tail else (offsets,)
