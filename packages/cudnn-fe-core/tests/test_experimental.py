"""The experimental notice comes once per name."""

from __future__ import annotations

import logging
import threading

import pytest

from cudnn_fe.core.experimental import _reset_for_tests, announce_experimental


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
