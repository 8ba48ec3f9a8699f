"""The doctor and the environment report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cudnn import collect_env
from cudnn._cli.app import app
from cudnn._cli.findings import findings
from cudnn._cli.serving import Serving, sample_problem, serving
from cudnn_fe.core.device import Device
from cudnn_fe.core.registry import families, find_op, ops

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
SECTIONS = ["frontend", "platform", "gpu", "cuda toolkit", "pytorch", "libraries", "packages", "environment"]


def test_doctor_json_holds_everything() -> None:
    result = runner.invoke(app, ["doctor", "--json"])
    report = json.loads(result.stdout)
    assert list(report) == ["environment", "findings", "cache", "ops"]
    assert list(report["environment"])[:-1] == SECTIONS
    on_cpu = {row["op"]: row for row in report["ops"] if row["place"] == "cpu"}
    assert set(on_cpu) == {op.name for op in ops()}
    assert all(row["backend"] == "reference" for row in on_cpu.values())


def test_doctor_prints_versions_and_reasons() -> None:
    result = runner.invoke(app, ["doctor"])
    assert "gemm_swiglu_forward" in result.output
    assert "sm90: runs on GPUs" in result.output
    assert "numpy" in result.output


@pytest.mark.parametrize(
    ("packages", "level", "part"),
    [
        ({"nvidia-cudnn-frontend": "1.32.0"}, "problem", "also owns the import name `cudnn`"),
        ({"torch": "2.11 AND 2.15: installed twice"}, "problem", "torch 2.11 AND 2.15: installed twice"),
        (
            {"nvidia-cutlass-dsl": "4.8.1", "nvidia-cutlass-dsl-libs-base": "4.7.0"},
            "problem",
            "different versions: cutlass-dsl 4.8.1, cutlass-dsl-libs-base 4.7.0",
        ),
        (
            {"nvidia-cutlass-dsl-libs-cu12": "4.8.1", "nvidia-cutlass-dsl-libs-cu13": "4.8.1"},
            "note",
            "for CUDA 12 and 13",
        ),
        (
            {"nvidia-cudnn-cu12": "9.1", "nvidia-cudnn-cu13": "9.2"},
            "problem",
            "nvidia-cudnn-cu12 and nvidia-cudnn-cu13",
        ),
        ({"cudnn-fe": "0.1.0", "cudnn-fe-core": "0.9.0", "cudnn-fe-gemm": "0.1.0"}, "problem", "0.9.0 is installed"),
        ({"cudnn-fe-gemm": "0.1.0"}, "problem", "wants cudnn-fe-core"),
    ],
)
def test_findings(packages: dict[str, str], level: str, part: str) -> None:
    found = findings({"packages": packages})
    assert [f for f in found if f.level == level and part in f.what]


def test_a_clean_environment_has_no_problem() -> None:
    ours = ["cudnn-fe", "cudnn-fe-core", *(family.package for family in families())]
    packages = {**dict.fromkeys(ours, "0.1.0"), "nvidia-cutlass-dsl": "4.8.1"}
    assert [f for f in findings({"packages": packages}) if f.level == "problem"] == []


def test_doctor_exit_code_follows_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"packages": {"nvidia-cudnn-frontend": "1.32.0"}}
    monkeypatch.setattr(collect_env, "collect_env_info", lambda: report)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "pip uninstall nvidia-cudnn-frontend" in result.output


def served(capability: tuple[int, int]) -> Serving:
    op = find_op("gemm_swiglu_forward")
    assert op is not None
    return serving(op, Device("cuda:0", capability, 132, "some GPU"), sample_problem(op, "cuda:0"))


def test_serving_asks_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn._cli.serving.missing_toolchain", lambda: None)
    assert served((9, 0)).backend == "sm90"
    assert dict(served((9, 0)).others)["portable"] == "serves too; a better one comes first"
    assert served((8, 0)).backend == "portable"
    assert "9.0, not 8.0" in dict(served((8, 0)).others)["sm90"]
    assert served((7, 5)).backend == "none"
    monkeypatch.setattr("cudnn._cli.serving.missing_toolchain", lambda: "no compiler")
    assert served((9, 0)).backend == "none"
    assert dict(served((9, 0)).others)["sm90"] == "no compiler"


def test_collect_env_runs_as_a_plain_file() -> None:
    path = Path(collect_env.__file__)
    command = [sys.executable, "-I", "-S", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout))[:-1] == SECTIONS


def test_collect_env_survives_a_failing_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, str]:
        raise OSError("no such thing")

    monkeypatch.setitem(collect_env._SECTIONS, "gpu", broken)
    report = collect_env.collect_env_info()
    assert report["gpu"] == {"error": "OSError: no such thing"}
    assert "error  OSError: no such thing" in collect_env.format_report(report)


def test_collect_env_hides_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_API_KEY", "abc123")
    monkeypatch.setenv("CUDNN_LOGLEVEL_DBG", "1")
    monkeypatch.setenv("HOME_ADDRESS", "here")
    environment = collect_env.collect_env_info()["environment"]
    assert environment["NVIDIA_API_KEY"] == "(hidden)"
    assert environment["CUDNN_LOGLEVEL_DBG"] == "1"
    assert "HOME_ADDRESS" not in environment


def test_collect_env_main_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    collect_env.main([])
    text = capsys.readouterr().out
    assert text.startswith("frontend\n")
    assert f"python      {sys.version.split()[0]}" in text
