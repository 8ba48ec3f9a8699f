"""Which release of flash-linear-attention is installed."""

from __future__ import annotations

import sys
from importlib import metadata

__all__ = ["fla_version"]


def fla_version() -> str:
    """The release, by its package's metadata or by what the imported module says; ``"unknown"`` without either."""
    for package in ("flash-linear-attention", "fla-core"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get("fla"), "__version__", "unknown"))
