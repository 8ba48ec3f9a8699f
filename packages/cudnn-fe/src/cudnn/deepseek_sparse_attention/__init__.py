"""DeepSeek sparse attention by its module path in cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.namespaces import DSA

__all__ = ["DSA", *dir(DSA)]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    value = globals()[name] = getattr(DSA, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
