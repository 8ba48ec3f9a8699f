"""The settings: few, read from the environment once, changeable at run time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cudnn_fe.core.errors import OptionError

__all__ = ["Settings", "configure", "override", "settings"]

_YES = frozenset({"1", "true", "yes", "on"})


def _setting(default: Any, env: str, doc: str) -> Any:
    return field(default=default, metadata={"env": env, "doc": doc})


@dataclass(frozen=True)
class Settings:
    """Everything that can be set from outside a call."""

    backend: str = _setting(
        "auto",
        "CUDNN_FE_BACKEND",
        "Backend of calls that name none: `auto`, or `reference`, `portable`, `sm90`, ... meaning that or an error.",
    )
    cache_dir: str = _setting(
        "",
        "CUDNN_FRONTEND_COMPILED_CACHE",
        "Folder of compiled kernels. Empty: the platform's user cache folder.",
    )
    disable_cache: bool = _setting(
        False,
        "CUDNN_FRONTEND_DISABLE_COMPILED_CACHE",
        "Neither read nor write compiled kernels on disk.",
    )
    cache_max_bytes: int = _setting(
        4 << 30,
        "CUDNN_FRONTEND_COMPILED_CACHE_MAX_BYTES",
        "Size above which the oldest compiled kernels are deleted; 0 never deletes.",
    )
    validate_device_values: bool = _setting(
        False,
        "CUDNN_FE_GROUPED_GEMM_VALIDATE_DEVICE_VALUES",
        "Grouped GEMMs read offsets and addresses on the host and check them first, which waits for the GPU.",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Settings as the environment variables say, defaults elsewhere.

        Raises:
            OptionError: A number is not one.
        """
        values: dict[str, Any] = {}
        for row in fields(cls):
            text = environment.get(row.metadata["env"], "").strip()
            if not text:
                continue
            if isinstance(row.default, bool):
                values[row.name] = text.lower() in _YES
            elif isinstance(row.default, int):
                if not text.isdecimal():
                    raise OptionError(
                        row.metadata["env"],
                        got=repr(text),
                        wanted="a number of bytes",
                        remedy="set a whole number or unset the variable",
                    )
                values[row.name] = int(text)
            else:
                values[row.name] = text
        return cls(**values)

    @property
    def cache_path(self) -> Path:
        """Folder of compiled kernels.

        Raises:
            RuntimeError: It lies in the home folder, and the user has none.
        """
        if self.cache_dir:
            return Path(self.cache_dir).expanduser()
        import platformdirs  # only a process that compiles or loads a kernel pays for it

        folder = Path(platformdirs.user_cache_dir("cudnn-fe"))
        if not folder.is_absolute():  # an unexpanded "~": the user has no home
            raise RuntimeError("no home folder")
        return folder / "kernels"


_current: Settings | None = None


def settings() -> Settings:
    """The settings in force."""
    global _current
    if _current is None:
        _current = Settings.from_environment(os.environ)
    return _current


def configure(**changes: Any) -> Settings:
    """Change settings for the whole process and return the new ones.

    Raises:
        OptionError: A name is not a setting.
    """
    global _current
    known = {row.name for row in fields(Settings)}
    for name in changes:
        if name not in known:
            raise OptionError(name, got=repr(name), wanted=f"one of {sorted(known)}", remedy="name an existing setting")
    _current = replace(settings(), **changes)
    return _current


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Change settings for the whole process inside a ``with`` block."""
    before = settings()
    try:
        yield configure(**changes)
    finally:
        configure(**{row.name: getattr(before, row.name) for row in fields(Settings)})
