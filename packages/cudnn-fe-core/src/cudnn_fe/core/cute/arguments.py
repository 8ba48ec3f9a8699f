"""Stand-ins for operands, from which kernels are compiled without data or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cutlass import cute

from cudnn_fe.core.cute.numerics import element_type

__all__ = ["fake_tensor", "named"]


def fake_tensor(dtype: str, contiguous: int, *, rank: int = 3, alignment: int = 16) -> Any:
    """A tensor with symbolic extents and 64-bit symbolic strides, unit stride in mode `contiguous`.

    Divisibility of the strides is left to the launcher: a dimension of one element may have any stride.
    """
    shape = tuple(cute.sym_int32() for _ in range(rank))
    stride = tuple(1 if mode == contiguous else cute.sym_int64() for mode in range(rank))
    return cute.runtime.make_fake_tensor(element_type(dtype), shape, stride, assumed_align=alignment)


def named(names: Sequence[tuple[str, bool]], tensors: Sequence[Any]) -> SimpleNamespace:
    """Tensors by name, None for absent ones, from those that are present in order."""
    given = iter(tensors)
    return SimpleNamespace(**{name: next(given) if present else None for name, present in names})
