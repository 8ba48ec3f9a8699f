"""Choices that a tuner measured, kept beside the compiled kernels: a small JSON file, read once per process."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from cudnn_fe.core.object_cache import object_cache

__all__ = ["forget_choices", "stored_choice", "tune"]

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_choices: dict[Path, dict[str, Mapping[str, Any]]] = {}
_FILE = "tuned-choices"  # no suffix of an entry: listing and clearing the kernels leave it alone

Candidate = TypeVar("Candidate")


def _file() -> Path | None:
    cache = object_cache()
    return cache.folder / _FILE if cache is not None else None


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    found = _choices.get(path)
    if found is None:
        try:
            found = dict(json.loads(path.read_text()))
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError, TypeError) as error:
            _log.warning("tuned choices in %s are ignored: %s", path, error)
            found = {}
        _choices[path] = found
    return found


def stored_choice(key: str) -> Mapping[str, Any] | None:
    """The fields of the candidate that was fastest for ``key``, or None if nobody tuned it."""
    path = _file()
    return None if path is None else _read(path).get(key)


def forget_choices() -> None:
    """Read the file anew on the next look-up."""
    _choices.clear()


def tune(key: str, candidates: Iterable[Candidate], time: Callable[[Candidate], float]) -> tuple[Candidate, float]:
    """Time every candidate, store the fastest under ``key``, and return it with its time.

    Args:
        key: What the choice depends on: problem, device.
        candidates: Frozen dataclasses of plain values.
        time: Seconds (or any unit) that a candidate takes; raises where it cannot run.

    Raises:
        ValueError: No candidate ran.
    """
    timed = []
    for candidate in candidates:
        try:
            timed.append((time(candidate), candidate))
        except Exception as error:
            _log.warning("%r is left out: %s", candidate, error)
    if not timed:
        raise ValueError(f"no candidate for {key} ran")
    best, choice = min(timed, key=lambda row: row[0])
    path = _file()
    if path is not None:
        with _lock:
            forget_choices()  # another process may have added some
            _write(path, {**_read(path), key: asdict(choice)})  # type: ignore[call-overload]
    return choice, best


def _write(path: Path, choices: Mapping[str, Mapping[str, Any]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tuned-")
        with os.fdopen(handle, "w") as file:
            json.dump(choices, file, indent=1)
        os.replace(name, path)
    except OSError as error:
        _log.warning("the tuned choice is not kept: %s cannot be written to (%s)", path, error)
    _choices[path] = dict(choices)
