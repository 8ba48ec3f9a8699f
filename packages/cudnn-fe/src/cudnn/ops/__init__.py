"""The families' names that live below ``cudnn.ops``, resolved on first use."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    from cudnn._lazy import find  # reading entry points takes longer than this import may

    value = find(f"ops.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from cudnn._lazy import names

    return sorted({*globals(), *(name.removeprefix("ops.") for name in names("ops."))})
