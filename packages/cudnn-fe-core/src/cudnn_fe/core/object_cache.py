"""Compiled kernels on disk: atomic, locked per key, checked on reading, bounded in size, and never required.

An entry is two files in one folder, ``<key>.so`` (or ``.o`` where no linker is installed) and ``<key>.json``, its
record, which is written last and holds the object's digest. Whatever does not match its record is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cudnn_fe.core.settings import settings

__all__ = ["Entry", "ObjectCache", "object_cache"]

_log = logging.getLogger(__name__)
_LOCK_SECONDS = 300.0  # longer than any kernel compiles
_warned: set[Path] = set()  # folders whose refusal was reported


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled kernel on disk.

    Attributes:
        key: Digest of everything that the code depends on.
        path: The object file.
        nbytes: Its size.
        sha256: Its digest.
        created: Seconds since the epoch.
        labels: What it is, for people: op, backend, architecture, versions.
    """

    key: str
    path: str
    nbytes: int
    sha256: str
    created: float
    labels: Mapping[str, str]


class ObjectCache:
    """A folder of compiled kernels.

    Args:
        folder: Where; made when first written to.
        max_bytes: The oldest entries go when the folder outgrows this; 0 keeps all.
    """

    def __init__(self, folder: Path, max_bytes: int = 0) -> None:
        self.folder, self.max_bytes = folder, max_bytes

    def find(self, key: str) -> Path | None:
        """The object of ``key``, checked against its record; damaged entries are removed."""
        record = self.folder / f"{key}.json"
        try:
            entry = Entry(**json.loads(record.read_text()))
            path = self.folder / Path(entry.path).name
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("cache entry %s is rebuilt, since it cannot be read: %s", key[:16], error)
            self.discard(key)
            return None
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            _log.warning("cache entry %s is rebuilt, since its bytes differ from its record", key[:16])
            self.discard(key)
            return None
        with suppress(OSError):
            os.utime(record)  # age counts from the last use
        return path

    def store(self, key: str, build: Callable[[Path], Path], labels: Mapping[str, str]) -> Path | None:
        """Write an entry that ``build(folder)`` leaves in a temporary folder.

        Returns:
            The object's path, or None if the folder cannot be written to: the caller then keeps its code in memory.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as scratch:
                built = build(Path(scratch))
                content = built.read_bytes()
                path = self.folder / f"{key}{built.suffix}"
                digest = hashlib.sha256(content).hexdigest()
                entry = Entry(key, path.name, len(content), digest, time.time(), dict(labels))
                record = Path(scratch) / "record.json"
                record.write_text(json.dumps(asdict(entry), indent=1))
                built.replace(path)
                record.replace(self.folder / f"{key}.json")
        except OSError as error:
            if self.folder not in _warned:
                _warned.add(self.folder)
                _log.warning("compiled kernels are not kept: %s cannot be written to (%s)", self.folder, error)
            return None
        self.prune()
        return path

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold ``key`` for this process alone; without effect where the folder cannot be written to."""
        from filelock import FileLock, Timeout  # only a process that compiles pays for it

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            guard = FileLock(self.folder / f".{key}.lock", timeout=_LOCK_SECONDS)
            guard.acquire()
        except (OSError, NotImplementedError, Timeout):  # file systems without locks raise the second
            yield
            return
        try:
            yield
        finally:
            guard.release()

    def entries(self) -> list[Entry]:
        """Every readable entry, the most recently used first."""
        found = []
        for record in self.folder.glob("*.json"):
            with suppress(OSError, ValueError, TypeError):
                found.append((record.stat().st_mtime, Entry(**json.loads(record.read_text()))))
        return [entry for _, entry in sorted(found, key=lambda row: row[0], reverse=True)]

    def clear(self) -> int:
        """Delete every entry and return how many there were."""
        keys = {path.stem for pattern in ("*.json", "*.so", "*.o") for path in self.folder.glob(pattern)}
        for key in keys:
            self.discard(key)
        self._sweep()
        for lock in self.folder.glob(".*.lock"):
            with suppress(OSError):
                lock.unlink()
        return len(keys)

    def prune(self) -> None:
        """Delete the entries used longest ago until the folder is within its bound."""
        self._sweep()
        if not self.max_bytes:
            return
        total = 0
        for entry in self.entries():
            total += entry.nbytes
            if total > self.max_bytes:
                self.discard(entry.key)

    def discard(self, key: str) -> None:
        """Delete an entry, if it is there."""
        for suffix in (".json", ".so", ".o"):
            with suppress(OSError):
                (self.folder / f"{key}{suffix}").unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Delete what processes left that ended while writing."""
        for scratch in self.folder.glob(".new-*"):
            with suppress(OSError):
                if time.time() - scratch.stat().st_mtime > _LOCK_SECONDS:
                    shutil.rmtree(scratch)


def object_cache() -> ObjectCache | None:
    """The cache that the settings name, or None if they turn it off or no folder can be named."""
    current = settings()
    if current.disable_cache:
        return None
    try:
        return ObjectCache(current.cache_path, current.cache_max_bytes)
    except (OSError, RuntimeError):  # no home folder
        return None
