"""Which release of flash-linear-attention is installed."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import metadata

__all__ = ["fla_version"]


@lru_cache(maxsize=1)  # reading metadata takes longer than a step of a small layer
def fla_version() -> str:
    """The release, by its package's metadata or by what the imported module says; ``"unknown"`` without either."""
    for package in ("flash-linear-attention", "fla-core"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get("fla"), "__version__", "unknown"))
