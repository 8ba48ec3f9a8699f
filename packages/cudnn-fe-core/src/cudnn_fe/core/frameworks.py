"""Which array framework an object comes from, found without importing any."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from cudnn_fe.core.errors import FrameworkError

__all__ = ["Framework", "common_framework", "framework_of"]

Framework = Literal["torch", "jax", "numpy", "dlpack"]


def framework_of(array: Any, *, operand: str = "tensor") -> Framework:
    """The framework of ``array``: torch tensors, JAX arrays and tracers, NumPy arrays, or any DLPack object.

    Frameworks are looked up among the modules already imported: an object of a framework that nobody imported
    cannot exist.

    Raises:
        FrameworkError: ``array`` is none of these.
    """
    modules = sys.modules
    torch = modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    numpy = modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return "numpy"
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return "dlpack"
    raise FrameworkError(
        operand,
        got=f"{type(array).__module__}.{type(array).__qualname__}",
        wanted="a torch tensor, a JAX array, a NumPy array or an object with DLPack",
        remedy="convert it to one of these",
    )


def common_framework(operands: Sequence[tuple[str, Any]]) -> Framework:
    """The one framework of all ``(name, array)`` pairs; arrays that are None are left out.

    NumPy arrays among JAX arrays count as JAX's, as everywhere in JAX.

    Raises:
        FrameworkError: The arrays come from several frameworks.
    """
    found: Framework | None = None
    first = ""
    for name, array in operands:
        if array is None:
            continue
        framework = framework_of(array, operand=name)
        if found is None:
            found, first = framework, name
        elif {framework, found} == {"jax", "numpy"}:
            found = "jax"
        elif framework != found:
            raise FrameworkError(
                name,
                got=f"an array of {framework}",
                wanted=f"an array of {found}, as {first} is",
                remedy="pass all operands as arrays of one framework",
            )
    if found is None:
        raise FrameworkError("operands", got="none", wanted="at least one array", remedy="pass the documented tensors")
    return found
