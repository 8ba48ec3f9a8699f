"""Finds what a name of ``cudnn`` means: an installed family's export, a submodule, or the package to install."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import cudnn
from cudnn._known import PACKAGE_OF
from cudnn_fe.core.errors import MissingPackageError
from cudnn_fe.core.op import resolve
from cudnn_fe.core.registry import families

__all__ = ["find", "names"]

_SUBMODULES = frozenset(row.name for row in pkgutil.iter_modules(cudnn.__path__) if not row.name.startswith("_"))


@lru_cache(maxsize=1)
def _exports() -> Mapping[str, str]:
    return {name: target for family in families() for name, target in family.exports.items()}


def names(prefix: str = "") -> set[str]:
    """Every name that resolves here and now, of ``cudnn`` itself, or below a submodule's ``prefix`` with a dot."""
    if prefix:
        return {name for name in _exports() if name.startswith(prefix)}
    return {name for name in _exports() if "." not in name} | _SUBMODULES


def find(name: str) -> Any:
    """The object called ``name``.

    Raises:
        AttributeError: No family has such a name.
        MissingPackageError: A family has it, but is not installed or too old.
    """
    if name in _SUBMODULES:
        return importlib.import_module(f"cudnn.{name}")
    target = _exports().get(name)
    if target is not None:
        return resolve(target)
    package = PACKAGE_OF.get(name)
    if package is None:
        raise AttributeError(f"module 'cudnn' has no attribute {name!r}")
    installed = package in {family.package for family in families()}
    raise MissingPackageError(
        f"cudnn.{name}",
        got=f"a release of {package} without it" if installed else f"no {package} in this environment",
        wanted=f"the package {package}, which is to hold it",
        remedy=f"pip install --upgrade {package}",
    )
