"""Settings come from few variables, all documented, and changes are undone."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import platformdirs
import pytest

from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.settings import Settings, configure, override, settings


def test_defaults_and_every_variable() -> None:
    assert Settings.from_environment({}) == Settings()
    found = Settings.from_environment(
        {
            "CUDNN_FE_BACKEND": " portable ",
            "CUDNN_FRONTEND_COMPILED_CACHE": "/somewhere",
            "CUDNN_FRONTEND_DISABLE_COMPILED_CACHE": " Yes",
            "CUDNN_FRONTEND_COMPILED_CACHE_MAX_BYTES": "0",
            "CUDNN_FE_GROUPED_GEMM_VALIDATE_DEVICE_VALUES": "1",
        }
    )
    assert found == Settings("portable", "/somewhere", True, 0, True)
    assert len(fields(Settings)) == 5


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)])
def test_boolean_spellings(text: str, value: bool) -> None:
    assert Settings.from_environment({"CUDNN_FRONTEND_DISABLE_COMPILED_CACHE": text}).disable_cache is value


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "²", "1e9"])
def test_a_bad_number_names_the_variable(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"^CUDNN_FRONTEND_COMPILED_CACHE_MAX_BYTES: got .*, wanted a number of bytes"
    ):
        Settings.from_environment({"CUDNN_FRONTEND_COMPILED_CACHE_MAX_BYTES": text})


def test_override_restores_also_when_nested() -> None:
    before = settings()
    with override(backend="reference") as outer:
        assert settings() is outer
        with override(disable_cache=True):
            assert settings().backend == "reference"
            assert settings().disable_cache
        assert settings() == outer
    assert settings() == before


def test_override_restores_after_an_error() -> None:
    before = settings()
    with pytest.raises(KeyError), override(backend="reference"):
        raise KeyError
    assert settings() == before


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(OptionError, match=r"^colour: .*wanted one of \['backend', "):
        configure(colour="red")


def test_cache_path_is_the_setting_or_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Settings(cache_dir="~/kernels").cache_path == Path.home() / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Settings().cache_path == tmp_path / "cudnn-fe" / "kernels"


def test_without_a_home_there_is_no_cache_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: f"~/.cache/{name}")
    with pytest.raises(RuntimeError, match="no home folder"):
        _ = Settings().cache_path


@pytest.mark.parametrize("row", fields(Settings), ids=lambda row: row.name)
def test_every_setting_is_documented(row: object) -> None:
    metadata = row.metadata  # type: ignore[attr-defined]
    assert metadata["env"].startswith("CUDNN_")
    assert metadata["doc"].endswith(".")
