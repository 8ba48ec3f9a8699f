"""The caller's buffer for final states: checked like an output, then filled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import DeviceError, DTypeError, OptionError, ShapeError
from cudnn_fe.core.frameworks import common_framework, framework_of
from cudnn_fe.core.tensor import TensorSpec, refuse_overlap, spec_of

__all__ = ["require_buffer", "require_like", "write_final_states"]

_NAME = "final_states_out"


def require_buffer(buffer: Any, wanted: TensorSpec, operands: Mapping[str, Any]) -> None:
    """Raises unless the caller's buffer is one for such states, apart from every operand.

    Args:
        buffer: The buffer.
        wanted: The final states.
        operands: The call's operands by name.

    Raises:
        FrameworkError, OptionError, ShapeError, DTypeError, DeviceError: It is no buffer for these states.
        AliasError: It overlaps an operand.
    """
    if common_framework(("x", _NAME), (operands["x"], buffer)) == "jax":
        raise OptionError(
            _NAME, got="a JAX array", wanted="None: JAX arrays do not change", remedy="use the returned states"
        )
    spec = spec_of(buffer, _NAME)
    require_like(spec, wanted)
    present = [(spec_of(x, name), x) for name, x in operands.items() if x is not None]
    placed = [(row, pointer) for row, x in present if (pointer := _pointer(x)) is not None]
    target = _pointer(buffer)
    if target is not None:
        refuse_overlap(placed, [(spec, target)])


def require_like(buffer: Any, states: Any) -> None:
    """Raises unless specs, or torch tensors, which have no address while traced, agree in shape, type and place."""
    for kind, what in ((ShapeError, "shape"), (DTypeError, "dtype"), (DeviceError, "device")):
        got, wanted = getattr(buffer, what), getattr(states, what)
        if got != wanted:
            raise kind(_NAME, got=str(got), wanted=str(wanted), remedy="allocate it so")


def write_final_states(buffer: Any, states: Any) -> None:
    """Copy ``states`` into the buffer; under torch's autograd the buffer then carries their gradient."""
    if framework_of(buffer, operand=_NAME) == "torch":
        buffer.copy_(states)
    else:
        buffer[...] = states


def _pointer(array: Any) -> int | None:
    """The array's address, None where it has none: traced and fake tensors."""
    if isinstance(array, TensorSpec):
        return None
    interface = getattr(array, "__array_interface__", None) if not hasattr(array, "data_ptr") else None
    if interface is not None:
        return int(interface["data"][0])
    try:
        return int(array.data_ptr())
    except (AttributeError, RuntimeError):
        return None
