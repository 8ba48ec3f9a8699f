"""Checks that contracts share: each raises the typed error with the operand's name."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from cudnn_fe.core.errors import AlignmentError, DeviceError, DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.tensor import TRACED, TensorSpec, contiguous_strides

__all__ = [
    "require_aligned",
    "require_contiguous",
    "require_dtype",
    "require_finite_positive",
    "require_one_of",
    "require_rows",
    "require_same_device",
    "require_shape",
]


def require_dtype(spec: TensorSpec, *allowed: str, remedy: str = "cast the operand") -> None:
    """Raises DTypeError unless the operand's element type is in ``allowed``."""
    if spec.dtype.name not in allowed:
        wanted = " or ".join(dict.fromkeys(allowed))
        raise DTypeError(spec.name, got=str(spec.dtype), wanted=wanted, remedy=remedy)


def require_shape(spec: TensorSpec, shape: tuple[int, ...], layout: str) -> None:
    """Raises ShapeError unless the operand has exactly this shape; ``layout`` names the dims."""
    spec.require_rank(len(shape), layout)
    if spec.shape != shape:
        raise ShapeError(spec.name, got=str(spec.shape), wanted=f"{layout} = {shape}", remedy="pass matching operands")


def require_same_device(first: TensorSpec, *others: TensorSpec | None) -> None:
    """Raises DeviceError unless all operands live in one place."""
    for other in others:
        if other is not None and other.device != first.device and TRACED not in (first.device, other.device):
            raise DeviceError(
                other.name,
                got=other.device,
                wanted=f"{first.device}, where {first.name} is",
                remedy="move the operands to one device",
            )


def require_contiguous(*specs: TensorSpec) -> None:
    """Raises StrideError unless every operand is row-major and compact."""
    for spec in specs:
        wanted = contiguous_strides(spec.shape)
        if spec.size and spec.strides != wanted:
            raise StrideError(
                spec.name, got=f"strides {spec.strides}", wanted=f"{wanted}: contiguous", remedy="make it contiguous"
            )


def require_rows(spec: TensorSpec) -> None:
    """Raises StrideError unless the last dim is contiguous; rows may be any distance apart."""
    if spec.size and not spec.dense_in(spec.ndim - 1):
        raise StrideError(
            spec.name,
            got=f"strides {spec.strides}",
            wanted="stride 1 along the last dim",
            remedy="lay the channels out innermost",
        )


def require_aligned(*specs: TensorSpec, nbytes: int = 16) -> None:
    """Raises AlignmentError unless every operand starts at a multiple of ``nbytes`` (up to 16)."""
    for spec in specs:
        if spec.size and spec.alignment < nbytes:
            raise AlignmentError(
                spec.name,
                got=f"a data pointer aligned to {spec.alignment} bytes",
                wanted=f"a multiple of {nbytes} bytes",
                remedy="copy the operand into a fresh allocation",
            )


def require_finite_positive(value: Any, name: str) -> float:
    """``value`` as a float; raises OptionError unless it is finite and above zero."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise OptionError(name, got=repr(value), wanted="a finite number above 0", remedy=f"pass e.g. {name}=1e-6")
    return float(value)


def _kind(value: Any) -> tuple[bool, bool]:
    return isinstance(value, bool), isinstance(value, Integral)


def require_one_of(value: Any, name: str, allowed: tuple[Any, ...]) -> None:
    """Raises OptionError unless ``value`` is in ``allowed``, as a number of the same kind where it is one.

    1, 1.0 and True are one key of a dict: a float that took the place of an int would stay in the caches of plans and
    fail later calls that pass the int.
    """
    if not any(_kind(value) == _kind(known) and value == known for known in allowed):
        raise OptionError(
            name, got=repr(value), wanted=f"one of {', '.join(map(repr, allowed))}", remedy="choose a listed value"
        )
