"""Rules that the ops of this family share: element types, shapes, places, and what makes an index array."""

from __future__ import annotations

from math import prod
from typing import Any

from cudnn_fe.core.errors import DTypeError, StrideError
from cudnn_fe.core.require import require_dtype, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = [
    "ANY_LAYOUT",
    "FLOATS",
    "MOST_COUNTED",
    "canonical_activation",
    "lie_whole",
    "require_index",
    "require_parameter",
    "states_output",
    "vector_length",
]

FLOATS = ("float64", "float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
MOST_COUNTED = 2**31 - 2**24  # what kernels count in 32 bits: a grid's last turns, past the end, must fit too
ANY_LAYOUT = "any strides; fastest where one dim is contiguous"
_VECTOR_BYTES = 16


def require_parameter(spec: TensorSpec, x: TensorSpec) -> None:
    """Raises DTypeError unless a weight or bias has x's element type, or float32 beside a half-precision x."""
    allowed = (x.dtype.name, "float32") if x.dtype.name in HALVES else (x.dtype.name,)
    if spec.dtype.name not in allowed:
        raise DTypeError(
            spec.name,
            got=str(spec.dtype),
            wanted=f"{' or '.join(allowed)}, beside {x.name} of {x.dtype}",
            remedy="cast one of the operands",
        )


def require_index(spec: TensorSpec, shape: tuple[int, ...], layout: str) -> None:
    """Raises unless the operand is a contiguous int32 vector of this shape."""
    require_dtype(spec, "int32")
    require_shape(spec, shape, layout)
    if not spec.dense_in(0):
        raise StrideError(
            spec.name, got=f"strides {spec.strides}", wanted="contiguous elements", remedy="call contiguous() on it"
        )


def states_output(name: str, count: int, channels: int, lanes: int, like: TensorSpec) -> TensorSpec:
    """States (S, D, W-1) whose channels are contiguous in memory, as decoding steps read them fastest."""
    shape = (count, channels, lanes)
    return TensorSpec(shape, contiguous_strides(shape, (1, 2, 0)), like.dtype, like.device, 16, name)


def vector_length(dim: int, *specs: TensorSpec, itemsize: int) -> int:
    """How many elements along ``dim`` every operand can be read and written at once: a power of two, to 16 bytes.

    Args:
        dim: The dim that vectors lie along.
        specs: Operands of one shape.
        itemsize: Size of the largest element.
    """
    length = max(_VECTOR_BYTES // itemsize, 1)
    for spec in specs:
        if not spec.dense_in(dim):
            return 1
        steps = [step for at, step in enumerate(spec.strides) if at != dim and spec.shape[at] > 1]
        while length > 1 and (
            spec.alignment % (length * spec.dtype.itemsize) or any(n % length for n in (*steps, spec.shape[dim]))
        ):
            length //= 2
    return length


def lie_whole(channels: int, *tensors: TensorSpec | None) -> bool:
    """Whether what so many neighbouring channels have in each tensor is an aligned piece for vector loads.

    Args:
        channels: How many.
        tensors: Taps (D, W), states (S, D, L), a bias (D,) or none.
    """
    return all(tensor is None or _lies_whole(channels, tensor) for tensor in tensors)


def _lies_whole(channels: int, tensor: TensorSpec) -> bool:
    at = max(tensor.ndim - 2, 0)  # the dim of channels
    count, size = prod(tensor.shape[at + 1 :]), tensor.dtype.itemsize
    piece = channels * count * size
    aligned = min(piece & -piece, _VECTOR_BYTES)
    compact = tensor.strides[at] == count and (count == 1 or tensor.strides[-1] == 1)
    return compact and tensor.alignment >= aligned and all(step * size % aligned == 0 for step in tensor.strides[:at])


def canonical_activation(given: Any) -> str | None:
    """``"identity"`` or ``"silu"`` for any documented spelling, None for others."""
    return {None: "identity", "identity": "identity", "silu": "silu", "swish": "silu"}.get(given)
