"""What a process is told once: that an API is experimental, and that a GPU runs an op's definition."""

from __future__ import annotations

import logging
import threading
import warnings

__all__ = ["announce_experimental", "warn_reference_on_gpu"]

_announced: set[str] = set()
_lock = threading.Lock()


def _first_time(name: str) -> bool:
    with _lock:
        if name in _announced:
            return False
        _announced.add(name)
        return True


def announce_experimental(name: str) -> None:
    """Log one WARNING per name and process, on the logger of that name."""
    if _first_time(name):
        logging.getLogger(name).warning("%s is experimental: its interface may change between minor releases", name)


def warn_reference_on_gpu(name: str) -> None:
    """Warn once per op and process that a GPU runs its definition, which is exact and slow."""
    if _first_time(f"reference of {name}"):
        warnings.warn(
            f'{name} has no GPU kernels yet that ran on one: its reference serves; backend="reference" asks for that '
            "without this warning",
            UserWarning,
            stacklevel=2,
        )


def _reset_for_tests() -> None:
    with _lock:
        _announced.clear()
