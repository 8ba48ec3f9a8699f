"""Namespace objects such as ``cudnn.NSA``: a table of names, each resolved when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.op import resolve

__all__ = ["Namespace"]


class Namespace:
    """An object whose attributes are imported on first access.

    Args:
        name: What ``repr`` and messages call it.
        members: Attribute to ``"module:attribute"``.
    """

    def __init__(self, name: str, members: Mapping[str, str]) -> None:
        self._name, self._members = name, dict(members)

    def __getattr__(self, name: str) -> Any:
        target = self.__dict__.get("_members", {}).get(name)
        if target is None:
            raise AttributeError(f"{self.__dict__.get('_name', 'namespace')} has no attribute {name!r}")
        value = resolve(target)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted(self._members)

    def __repr__(self) -> str:
        return f"<{self._name}: {', '.join(self._members)}>"
