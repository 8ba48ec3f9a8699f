"""Each package as its user gets it: built, installed without its siblings, and called."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections import Counter
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = (
    "cudnn-fe-core",
    "cudnn-fe-attention",
    "cudnn-fe-conv",
    "cudnn-fe-gemm",
    "cudnn-fe-grouped",
    "cudnn-fe-norm-rope",
    "cudnn-fe",
)
# Required where wheels exist, and nowhere needed by a call that runs the reference.
KERNEL_COMPILER = ("nvidia-cutlass-dsl", "apache-tvm-ffi")

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each published package, built through its sdist."""
    out = tmp_path_factory.mktemp("dist")
    for name in PUBLISHED:
        run("uv", "build", "--quiet", "--package", name, "--out-dir", out)
    built = {name: next(out.glob(f"{name.replace('-', '_')}-[0-9]*.whl")) for name in PUBLISHED}
    assert len(list(out.glob("*.tar.gz"))) == len(PUBLISHED)
    return built


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def requirements(wheel: Path) -> list[Requirement]:
    """What the wheel requires without extras."""
    (metadata,) = [name for name in names(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        fields = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist") or []
    needs = [Requirement(field) for field in fields]
    return [need for need in needs if need.marker is None or "extra" not in str(need.marker)]


def environment(wheels: dict[str, Path], folder: Path, family: str) -> Path:
    """The interpreter of a fresh environment with core and one family, what they declare, and no kernel compiler."""
    run("uv", "venv", "--quiet", "--python", sys.executable, folder)
    interpreter = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    chosen = ("cudnn-fe-core", family)
    declared = {need.name for name in chosen for need in requirements(wheels[name])}
    outside = sorted(declared - set(PUBLISHED) - set(KERNEL_COMPILER))
    pinned = [f"{name}=={version(name)}" for name in outside]
    run("uv", "pip", "install", "--quiet", "--python", interpreter, *pinned)
    run("uv", "pip", "install", "--quiet", "--no-deps", "--python", interpreter, *[wheels[name] for name in chosen])
    return interpreter


@pytest.fixture(scope="module")
def python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the GEMMs alone."""
    return environment(wheels, tmp_path_factory.mktemp("one-family") / "venv", "cudnn-fe-gemm")


def test_conv_alone_computes_on_numpy(wheels: dict[str, Path], tmp_path: Path) -> None:
    interpreter = environment(wheels, tmp_path / "venv", "cudnn-fe-conv")
    assert "156 values checked" in run(interpreter, "-I", "tests/one_family.py", "conv", "--bare")


@pytest.mark.parametrize("family", ["attention", "grouped", "norm_rope"])
def test_a_family_alone_offers_all_its_names(wheels: dict[str, Path], tmp_path: Path, family: str) -> None:
    interpreter = environment(wheels, tmp_path / "venv", f"cudnn-fe-{family.replace('_', '-')}")
    assert "values checked" in run(interpreter, "-I", "tests/one_family.py", family, "--bare")


def test_gemm_alone_computes_on_numpy(python: Path) -> None:
    assert "960 values checked" in run(python, "-I", "tests/one_family.py", "gemm", "--bare")


def test_unified_namespace_computes_on_numpy(python: Path, wheels: dict[str, Path]) -> None:
    missing = subprocess.run([python, "-I", "-c", "import cudnn"], capture_output=True, text=True, check=False)
    assert "No module named 'cudnn'" in missing.stderr
    run("uv", "pip", "install", "--quiet", "--no-deps", "--python", python, wheels["cudnn-fe"])
    assert "960 values checked" in run(python, "-I", "tests/one_family.py", "cudnn", "--bare")


def test_wheels_share_no_file(wheels: dict[str, Path]) -> None:
    owners = Counter(name for wheel in wheels.values() for name in names(wheel))
    assert [name for name, count in owners.items() if count > 1] == []
    assert "cudnn_fe/__init__.py" not in owners, "it would hide every other family from Python"


@pytest.mark.parametrize(
    ("name", "marker"), [(name, name.removeprefix("cudnn-fe").strip("-").replace("-", "_")) for name in PUBLISHED]
)
def test_wheel_carries_types_and_licence(wheels: dict[str, Path], name: str, marker: str) -> None:
    held = names(wheels[name])
    assert (f"cudnn_fe/{marker}/py.typed" if marker else "cudnn/py.typed") in held
    assert any(entry.endswith("licenses/LICENSE") for entry in held)
    assert not [entry for entry in held if "test" in entry.lower()]


def test_requirements_are_declared_in_ranges(wheels: dict[str, Path]) -> None:
    """Families release at their own pace: whoever needs a sibling accepts a range of it, never one version."""
    for name in PUBLISHED:
        for need in requirements(wheels[name]):
            if need.name in PUBLISHED:
                assert need.specifier.contains(version(need.name)), f"{name} refuses the {need.name} that stands here"
                assert {part.operator for part in need.specifier} == {">=", "<"}, f"{name}: {need}"
