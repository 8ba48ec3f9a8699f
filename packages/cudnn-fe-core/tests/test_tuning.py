"""Tuned choices: the fastest is kept, found again by a new process, and never required."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cudnn_fe.core.settings import override
from cudnn_fe.core.tuning import forget_choices, stored_choice, tune


@dataclass(frozen=True)
class Candidate:
    width: int


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    forget_choices()
    with override(cache_dir=str(tmp_path / "cache"), disable_cache=False):
        yield
    forget_choices()


def test_the_fastest_is_stored_and_found_by_the_next_process() -> None:
    assert stored_choice("shape") is None
    best, time = tune("shape", [Candidate(1), Candidate(2), Candidate(3)], lambda c: abs(c.width - 2) + 0.5)
    assert (best, time) == (Candidate(2), 0.5)
    forget_choices()
    assert stored_choice("shape") == {"width": 2}
    assert stored_choice("another") is None


def test_a_choice_does_not_displace_those_of_other_keys() -> None:
    tune("one", [Candidate(1)], float_width)
    forget_choices()
    tune("two", [Candidate(2)], float_width)
    assert stored_choice("one") == {"width": 1}


def float_width(candidate: Candidate) -> float:
    return float(candidate.width)


def test_a_candidate_that_cannot_run_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def time(candidate: Candidate) -> float:
        if candidate.width == 1:
            raise RuntimeError("too wide")
        return 1.0

    assert tune("shape", [Candidate(1), Candidate(2)], time)[0] == Candidate(2)
    assert "Candidate(width=1) is left out: too wide" in caplog.text
    with pytest.raises(ValueError, match="no candidate for shape ran"):
        tune("shape", [Candidate(1)], time)


def test_a_damaged_file_is_ignored_and_rewritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tune("shape", [Candidate(1)], float_width)
    (path,) = (p for p in (tmp_path / "cache").iterdir() if p.is_file())
    path.write_text("{")
    forget_choices()
    with caplog.at_level(logging.WARNING):
        assert stored_choice("shape") is None
    assert "are ignored" in caplog.text
    tune("shape", [Candidate(4)], float_width)
    assert json.loads(path.read_text()) == {"shape": {"width": 4}}


def test_without_a_cache_the_choice_is_returned_and_forgotten() -> None:
    with override(disable_cache=True):
        assert tune("shape", [Candidate(3)], float_width)[0] == Candidate(3)
        assert stored_choice("shape") is None


def test_an_unwritable_folder_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with override(cache_dir=str(blocker / "below")):
        assert tune("shape", [Candidate(3)], float_width)[0] == Candidate(3)
    assert "cannot be written to" in caplog.text
