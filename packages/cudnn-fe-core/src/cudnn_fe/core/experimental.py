"""The one-time log line that an API is experimental."""

from __future__ import annotations

import logging
import threading

__all__ = ["announce_experimental"]

_announced: set[str] = set()
_lock = threading.Lock()


def announce_experimental(name: str) -> None:
    """Log one WARNING per name and process, on the logger of that name."""
    with _lock:
        if name in _announced:
            return
        _announced.add(name)
    logging.getLogger(name).warning("%s is experimental: its interface may change between minor releases", name)


def _reset_for_tests() -> None:
    with _lock:
        _announced.clear()
