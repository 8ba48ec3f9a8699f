"""The command line as a whole: help, width, errors in one line, and what it needs to start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cudnn._cli.app import app
from cudnn._version import __version__

COMMANDS = (
    ["demo"],
    ["doctor"],
    ["ops"],
    ["bench"],
    ["cache", "list"],
    ["cache", "clear"],
    ["cache", "warmup"],
)
runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example: cudnn-fe {' '.join(command)}" in " ".join(result.output.split())


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"cudnn-fe {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["demo", "--framework", "tf"], "--framework: got 'tf', wanted torch or jax"),
        (["demo", "--steps", "0"], "--steps: got 0, wanted at least 1"),
        (["demo", "--seed", "-1"], "--seed: got -1"),
        (["demo", "--device", "tpu"], "--device: got 'tpu'"),
        (["demo", "--plot", "no-such-folder/loss.png"], "wanted a file in an existing folder"),
        (["demo", "--plot", "loss.doc"], "wanted a name ending in .png, .svg, .pdf"),
        (["bench", "nothing"], "OP: got 'nothing', wanted one of"),
        (["bench", "matmul", "--m", "4,x"], "--m: got '4,x'"),
        (["bench", "matmul", "--rounds", "1"], "--rounds: got 1"),
        (["bench", "matmul", "--model", "no such"], "--model: got 'no such'"),
        (["bench", "matmul", "--dtype", "int8"], "--dtype: got 'int8'"),
        (["bench", "matmul", "--json", "no-such-folder/rows.json"], "wanted a file in an existing folder"),
        (["cache", "warmup", "nothing"], "OP: got 'nothing'"),
        (["cache", "warmup", "--arch", "pentium"], "--arch: got 'pentium'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], part: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    errors = result.stderr.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert part in errors[0]


def test_tables_fit_100_columns() -> None:
    for arguments in (["ops"], ["doctor"]):
        result = runner.invoke(app, arguments)
        rules = [line for line in result.output.splitlines() if set(line.strip()) == {"─"}]
        assert rules
        assert max(map(len, rules)) <= 100


def test_missing_typer_is_said_in_one_line() -> None:
    done = run_python("import sys; sys.modules['typer'] = None\nfrom cudnn._cli import main; main()")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ['cudnn-fe: typer is not installed; pip install "cudnn-fe[cli]"']


def test_commands_that_need_no_framework_import_none() -> None:
    code = """
import sys
for name in ("torch", "jax", "cutlass"):
    sys.modules[name] = None
from typer.testing import CliRunner
from cudnn._cli.app import app
for arguments in (["ops", "--json"], ["cache", "list", "--json"], ["demo", "--help"]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("framework", "command"), [("torch", ["bench", "matmul"]), ("jax", ["demo"])])
def test_a_missing_framework_names_the_extra(
    framework: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == framework else real(name))
    options = ["--framework", framework] if command == ["demo"] else []
    result = runner.invoke(app, [*command, *options])
    assert result.exit_code == 2
    assert f'pip install "cudnn-fe[{framework}]"' in result.stderr


def test_ops_json_follows_the_registry() -> None:
    from cudnn_fe.core.registry import ops as registered

    records = json.loads(runner.invoke(app, ["ops", "--json"]).output)
    assert [record["name"] for record in records] == [op.name for op in registered()]
    swiglu = next(record for record in records if record["name"] == "gemm_swiglu_forward")
    assert swiglu["package"] == "cudnn-fe-gemm"
    assert swiglu["jax_name"] == "gemm_swiglu_jax_forward"
    assert "GemmSwigluSm100" in swiglu["legacy_names"]
    assert swiglu["frameworks"] == ["torch", "numpy", "jax"]
    assert swiglu["backends"]["reference"] == "run everywhere"
    assert swiglu["backends"]["sm100"] == "none"
    assert swiglu["backends"]["sm90"] in ("run on H200", "compiled")
