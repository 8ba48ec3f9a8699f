"""Functions of other families, which may be installed or not: found by name when they are called."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import MissingPackageError
from cudnn_fe.core.op import resolve
from cudnn_fe.core.registry import families

__all__ = ["exported"]


def exported(name: str, package: str) -> Any:
    """What the installed families export under that name.

    Raises:
        MissingPackageError: None does.
    """
    for family in families():
        if name in family.exports:
            return resolve(family.exports[name])
    raise MissingPackageError(
        f"cudnn.{name}", got="no such function", wanted=f"a release of {package} with it", remedy=f"install {package}"
    )
