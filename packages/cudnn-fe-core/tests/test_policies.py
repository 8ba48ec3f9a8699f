"""Determinism and the experimental notice."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch

from cudnn_fe.core.determinism import want_deterministic
from cudnn_fe.core.errors import DeterminismError, NotYetSupportedError
from cudnn_fe.core.experimental import _reset_for_tests, announce_experimental


@pytest.fixture(autouse=True)
def _ordinary_mode() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("has_path", [False, True])
def test_what_the_call_says_goes_whatever_torch_says(mode: bool, has_path: bool) -> None:
    torch.use_deterministic_algorithms(mode)
    assert want_deterministic("op", False, has_path=has_path) is False
    if has_path:
        assert want_deterministic("op", True, has_path=True) is True
    else:
        with pytest.raises(NotYetSupportedError, match=r"^deterministic: got True, wanted False: op adds with atomics"):
            want_deterministic("op", True, has_path=False)


def test_unset_follows_torch() -> None:
    assert want_deterministic("op", None, has_path=True) is False
    torch.use_deterministic_algorithms(True)
    assert want_deterministic("op", None, has_path=True) is True
    with pytest.raises(DeterminismError, match=r"^op: got torch.use_deterministic_algorithms"):
        want_deterministic("op", None, has_path=False)


def test_warn_only_warns_and_goes_on() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(RuntimeWarning, match="op adds with atomics"):
        assert want_deterministic("op", None, has_path=False) is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert want_deterministic("op", None, has_path=True) is True


def test_without_torch_nothing_asks_for_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert want_deterministic("op", None, has_path=False) is False


def test_one_notice_per_name_whoever_asks_and_how_often(caplog: pytest.LogCaptureFixture) -> None:
    _reset_for_tests()
    with caplog.at_level(logging.WARNING):
        threads = [
            threading.Thread(target=announce_experimental, args=(name,))
            for name in ("Alpha", "Beta")
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(record.name for record in caplog.records) == ["Alpha", "Beta"]
    assert all(
        record.levelno == logging.WARNING
        and "experimental" in record.getMessage()
        and record.name in record.getMessage()
        for record in caplog.records
    )
