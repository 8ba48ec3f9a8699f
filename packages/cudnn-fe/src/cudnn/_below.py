"""The families' names that live below a submodule of ``cudnn``, resolved on first use."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

__all__ = ["names_below"]


def names_below(prefix: str, scope: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the submodule called ``prefix``, whose globals are ``scope``."""

    modules = frozenset(row.name for row in pkgutil.iter_modules(scope.get("__path__", [])))

    def find_below(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"cudnn.{prefix}.{name}")
        from cudnn._lazy import find  # reading entry points takes longer than this import may

        value = scope[name] = find(f"{prefix}.{name}")
        return value

    def list_below() -> list[str]:
        from cudnn._lazy import names

        return sorted({*scope, *modules, *(name.removeprefix(f"{prefix}.") for name in names(f"{prefix}."))})

    return find_below, list_below
