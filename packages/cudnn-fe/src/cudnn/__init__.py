"""The unified namespace of the cudnn-fe packages.

Names resolve on first use: importing this module imports no torch, JAX, CuTe DSL or CUDA. ``dir(cudnn)`` lists what the
installed families offer; a name of a family that is not installed raises an ImportError that names its package.
"""

from __future__ import annotations

from typing import Any

from cudnn._vendor import warn_if_vendor_is_here
from cudnn._version import __version__

__all__ = ["__version__"]

warn_if_vendor_is_here(__file__)


def __getattr__(name: str) -> Any:
    from cudnn._lazy import find  # reading entry points takes longer than this import may

    value = find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from cudnn._lazy import names

    return sorted({*globals(), *names()})
