"""The caller's buffer for final states: checked like an output, then filled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import DeviceError, DTypeError, OptionError, ShapeError
from cudnn_fe.core.frameworks import common_framework
from cudnn_fe.core.tensor import TensorSpec, refuse_overlap, spec_of

__all__ = ["write_final_states"]

_NAME = "final_states_out"


def write_final_states(buffer: Any, states: Any, operands: Mapping[str, Any]) -> None:
    """Copy ``states`` into the buffer; under torch's autograd the buffer then carries their gradient.

    Raises:
        FrameworkError, OptionError, ShapeError, DTypeError, DeviceError: It is no buffer for these states.
        AliasError: It overlaps an operand.
    """
    framework = common_framework(("final_states", _NAME), (states, buffer))
    if framework == "jax":
        raise OptionError(
            _NAME, got="a JAX array", wanted="None: JAX arrays do not change", remedy="use the returned states"
        )
    spec, wanted = spec_of(buffer, _NAME), spec_of(states, _NAME)
    for kind, what in ((ShapeError, "shape"), (DTypeError, "dtype"), (DeviceError, "device")):
        if getattr(spec, what) != getattr(wanted, what):
            raise kind(_NAME, got=str(getattr(spec, what)), wanted=str(getattr(wanted, what)), remedy="allocate it so")
    present = [(spec_of(x, name), x) for name, x in operands.items() if x is not None]
    placed = [(row, pointer) for row, x in present if (pointer := _pointer(x)) is not None]
    target = _pointer(buffer)
    if target is not None:
        refuse_overlap(placed, [(spec, target)])
    if framework == "torch":
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
