"""The cache commands over a folder of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cudnn._cli.app import app
from cudnn_fe.core.object_cache import ObjectCache
from cudnn_fe.core.settings import override
from cudnn_fe.core.toolchain import missing_toolchain

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with override(cache_dir=str(tmp_path), disable_cache=False):
        yield tmp_path


def store(folder: Path, key: str) -> None:
    def build(scratch: Path) -> Path:
        (scratch / "k.o").write_bytes(b"x" * 2048)
        return scratch / "k.o"

    ObjectCache(folder).store(key, build, {"module": "cudnn_fe.gemm.swiglu.sm90", "arch": "sm_90a"})


def test_list_and_clear(folder: Path) -> None:
    assert "0 kernels" in runner.invoke(app, ["cache", "list"]).output
    store(folder, "a" * 64)
    store(folder, "b" * 64)
    text = runner.invoke(app, ["cache", "list"]).output
    assert "2 kernels" in text
    assert "aaaaaaaaaaaa" in text
    assert "gemm.swiglu.sm90" in text
    assert "2 KiB" in text
    listed = json.loads(runner.invoke(app, ["cache", "list", "--json"]).output)
    assert {entry["key"] for entry in listed["entries"]} == {"a" * 64, "b" * 64}
    assert "2 kernels deleted" in runner.invoke(app, ["cache", "clear"]).output
    assert list(folder.glob("*.o")) == []


def test_a_cache_that_is_off_is_said(folder: Path) -> None:
    with override(disable_cache=True):
        result = runner.invoke(app, ["cache", "list"])
    assert result.exit_code == 2
    assert "CUDNN_FRONTEND_DISABLE_COMPILED_CACHE" in result.stderr


def test_warmup_without_a_compiler_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_fe.core.toolchain.missing_toolchain", lambda: "nvidia-cutlass-dsl is not installed")
    result = runner.invoke(app, ["cache", "warmup", "--arch", "sm_90a"])
    assert result.exit_code == 2
    assert "nvidia-cutlass-dsl is not installed" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(missing_toolchain() is not None, reason="the kernel compiler is not installed")
def test_warmup_fills_the_cache_without_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # warmup sets it; the fixture takes it back
    command = ["cache", "warmup", "matmul", "--arch", "sm_90a"]
    first = runner.invoke(app, command, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert "matmul: sm90 for sm_90a compiled" in first.output
    listed = json.loads(runner.invoke(app, ["cache", "list", "--json"]).output)
    assert [entry["labels"]["arch"] for entry in listed["entries"]] == ["sm_90a"]
    assert "was there already" in runner.invoke(app, command).output
