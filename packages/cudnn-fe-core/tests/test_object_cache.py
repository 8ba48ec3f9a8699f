"""Compiled code on disk: damage is repaired, an unusable folder is lived with, the size is bounded."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from cudnn_fe.core.object_cache import ObjectCache, object_cache
from cudnn_fe.core.settings import override


def writer(content: bytes = b"code", suffix: str = ".so") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / f"built{suffix}"
        path.write_bytes(content)
        return path

    return build


def test_what_is_stored_is_found_with_its_record(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "new" / "folder")
    assert cache.find("key") is None
    path = cache.store("key", writer(), {"op": "toy"})
    assert path is not None
    assert path == cache.find("key")
    assert path.read_bytes() == b"code"
    (entry,) = cache.entries()
    assert (entry.key, entry.nbytes, entry.labels) == ("key", 4, {"op": "toy"})
    assert sorted(item.name for item in cache.folder.iterdir()) == ["key.json", "key.so"]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated object": lambda folder: (folder / "key.so").write_bytes(b"cod"),
    "flipped byte": lambda folder: (folder / "key.so").write_bytes(b"cOde"),
    "empty record": lambda folder: (folder / "key.json").write_text(""),
    "record that is no JSON": lambda folder: (folder / "key.json").write_text("{"),
    "record that is no object": lambda folder: (folder / "key.json").write_text("[1]"),
    "record of another form": lambda folder: (folder / "key.json").write_text('{"key": 1}'),
    "record with a number for a path": lambda folder: (folder / "key.json").write_text(
        json.dumps({**json.loads((folder / "key.json").read_text()), "path": 5})
    ),
    "record that is no text": lambda folder: (folder / "key.json").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_reported_removed_and_rebuilt(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = ObjectCache(tmp_path)
    cache.store("key", writer(), {})
    DAMAGE[damage](tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cache.find("key") is None
    assert "cache entry key is rebuilt" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert cache.store("key", writer(b"again"), {}) == cache.find("key")


def test_a_record_without_its_object_counts_as_absent_and_is_replaced(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.store("key", writer(), {})
    (tmp_path / "key.so").unlink()
    assert cache.find("key") is None
    assert cache.store("key", writer(suffix=".o"), {}) == cache.find("key") == tmp_path / "key.o"


def test_a_record_cannot_point_outside_the_folder(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    cache.store("key", writer(), {})
    (cache.folder / "key.so").rename(tmp_path / "key.so")
    record = cache.folder / "key.json"
    record.write_text(record.read_text().replace('"key.so"', '"../key.so"'))
    assert cache.find("key") is None


def test_an_unusable_folder_is_reported_once_and_everything_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        for key in ("one", "two"):
            cache = ObjectCache(tmp_path / "file" / "below")  # a new object each time, as for each kernel
            assert cache.find(key) is None
            with cache.lock(key):
                assert cache.store(key, writer(), {}) is None
            assert cache.entries() == []
            assert cache.clear() == 0
    assert len(caplog.records) == 1
    assert "compiled kernels are not kept" in caplog.text


def test_a_folder_that_may_not_be_read_counts_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path)
    cache.store("key", writer(), {})

    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert cache.find("key") is None
    assert (tmp_path / "key.so").exists()


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: f"~/.cache/{name}")
    with override(cache_dir=""):
        assert object_cache() is None
    with override(cache_dir="~no-such-user/kernels"):
        assert object_cache() is None


def test_the_settings_turn_it_off_and_bound_it(tmp_path: Path) -> None:
    with override(cache_dir=str(tmp_path), disable_cache=True):
        assert object_cache() is None
    with override(cache_dir=str(tmp_path), cache_max_bytes=7):
        cache = object_cache()
    assert cache is not None
    assert (cache.folder, cache.max_bytes) == (tmp_path, 7)


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=8)
    for age, key in enumerate(("new", "middle", "old")):
        ObjectCache(tmp_path).store(key, writer(), {})
        os.utime(tmp_path / f"{key}.json", (1000 - age, 1000 - age))
    assert cache.find("old") is not None  # a use makes it young
    cache.prune()
    assert [entry.key for entry in cache.entries()] == ["old", "new"]
    assert not (tmp_path / "middle.so").exists()
    ObjectCache(tmp_path).store("huge", writer(b"x" * 100), {})
    ObjectCache(tmp_path, max_bytes=0).prune()
    assert len(cache.entries()) == 3


def test_clear_counts_entries_and_leaves_nothing(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    for key in ("a", "b"):
        with cache.lock(key):
            cache.store(key, writer(), {})
    abandoned = tmp_path / ".new-abandoned"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    in_use = tmp_path / ".new-in-use"
    in_use.mkdir()
    assert cache.clear() == 2
    assert list(tmp_path.iterdir()) == [in_use]


def test_a_build_that_fails_leaves_no_entry(tmp_path: Path) -> None:
    def build(folder: Path) -> Path:
        (folder / "half.o").write_bytes(b"half")
        raise KeyError("bug")

    with pytest.raises(KeyError):
        ObjectCache(tmp_path).store("key", build, {})
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_released_when_the_body_raises(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    with pytest.raises(KeyError), cache.lock("key"):
        raise KeyError
    started = time.perf_counter()
    with cache.lock("key"):
        assert time.perf_counter() - started < 10
