"""Which array framework an object comes from, found without importing any."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from cudnn_fe.core.errors import FrameworkError

__all__ = ["Framework", "common_framework", "framework_of", "torch_is_tracing"]

Framework = Literal["torch", "jax", "numpy", "dlpack"]

# Where each framework keeps its array class; subclasses and JAX's tracers are instances of it.
_ARRAYS: tuple[tuple[Framework, str, str], ...] = (
    ("torch", "torch", "Tensor"),
    ("jax", "jax", "Array"),
    ("numpy", "numpy", "ndarray"),
)
_known: dict[type, Framework] = {}  # by exact type: the instance checks cost a microsecond, this a twentieth


def torch_is_tracing() -> bool:
    """Whether torch.compile or torch.export is looking at the caller."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # None too while another thread imports torch
    return compiler is not None and compiler.is_compiling()


def framework_of(array: Any, *, operand: str = "tensor") -> Framework:
    """The framework of ``array``: torch tensors, JAX arrays and tracers, NumPy arrays, or any DLPack object.

    Frameworks are looked up among the modules already imported: an object of a framework that nobody imported
    cannot exist.

    Raises:
        FrameworkError: ``array`` is none of these.
    """
    known = _known.get(type(array))
    if known is not None:
        return known
    for framework, module, name in _ARRAYS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(array, kind):
            _known[type(array)] = framework
            return framework
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return "dlpack"
    raise FrameworkError(
        operand,
        got=f"{type(array).__module__}.{type(array).__qualname__}",
        wanted="a torch tensor, a JAX array, a NumPy array or an object with DLPack",
        remedy="convert it to one of these",
    )


def common_framework(names: Sequence[str], arrays: Sequence[Any]) -> Framework:
    """The one framework of all arrays; those that are None are left out.

    NumPy arrays among JAX arrays count as JAX's, as everywhere in JAX.

    Args:
        names: What messages call the arrays.
        arrays: The arrays.

    Raises:
        FrameworkError: The arrays come from several frameworks, or there are none.
    """
    found: Framework | None = None
    first = 0
    for position, array in enumerate(arrays):
        if array is None:
            continue
        framework = _known.get(type(array))
        if framework is None:
            framework = framework_of(array, operand=names[position])
        if framework == found:
            continue
        if found is None:
            found, first = framework, position
        elif {framework, found} == {"jax", "numpy"}:
            found = "jax"
        else:
            raise FrameworkError(
                names[position],
                got=f"an array of {framework}",
                wanted=f"an array of {found}, as {names[first]} is",
                remedy="pass all operands as arrays of one framework",
            )
    if found is None:
        raise FrameworkError("operands", got="none", wanted="at least one array", remedy="pass the documented tensors")
    return found
