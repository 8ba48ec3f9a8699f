"""What holds for the repository's files, whatever they say."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
KERNEL = re.compile(r"/core/cute/|/(sm90|sm100|portable)\w*(\.py|/)")
LINES, KERNEL_LINES = 400, 700


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def matches(pattern: str) -> list[str]:
    """Each line of a tracked text file that the pattern finds, as file:line: text."""
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
    return found


def test_no_file_names_a_path_of_one_machine() -> None:
    assert matches(r"(?<![\w.$}])/(?:work|root|tmp|home)/\w") == []


def test_no_file_names_a_package_registry() -> None:
    assert matches(r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|download\.pytorch\.org") == []


def test_no_lock_file_is_tracked() -> None:
    assert [path.name for path in tracked() if path.name in ("uv.lock", "poetry.lock")] == []


def test_files_are_short() -> None:
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in tracked()
        if path.suffix == ".py"
        for lines in [len(path.read_text().splitlines())]
        if lines > (KERNEL_LINES if KERNEL.search(path.as_posix()) else LINES)
    }
    assert long == {}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_is_complete(package: Path) -> None:
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert list(package.glob("src/**/py.typed"))
    assert (package / "CHANGELOG.md").read_text().startswith("# Changelog\n")
    readme = (package / "README.md").read_text()
    assert f"pip install {package.name}" in readme
    assert "```python" in readme


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_is_checked(package: Path) -> None:
    """A new package is easily left out of the settings that name each one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert f"$MYPY_CONFIG_FILE_DIR/packages/{package.name}/src" in settings["mypy"]["mypy_path"]
    module = "cudnn" if package.name == "cudnn-fe" else package.name.replace("cudnn-fe-", "cudnn_fe.").replace("-", "_")
    direction, published = settings["importlinter"]["contracts"]
    assert module in settings["importlinter"]["root_packages"]
    assert any(module in re.split(r"[ |:]+", layer) for layer in direction["layers"])
    assert module in published["source_modules"]


def test_metapackage_brings_every_family() -> None:
    metapackage = tomllib.loads((ROOT / "packages/cudnn-fe/pyproject.toml").read_text())["project"]["dependencies"]
    named = {re.split(r"[<>=\[ ;]", need)[0] for need in metapackage}
    assert {package.name for package in PACKAGES} - {"cudnn-fe"} <= named


def test_actions_are_pinned_by_commit() -> None:
    used = [line for line in matches(r"^\s*(?:- )?uses:") if line.startswith(".github/workflows/")]
    assert used
    assert [line for line in used if not re.search(r"uses: [\w./-]+@[0-9a-f]{40}\b", line)] == []


def test_relative_links_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
        # docs/generate.py writes the ops' pages.
        if not target.startswith(("http", "mailto", "ops/")) and not (path.parent / target).exists()
    ]
    assert broken == []
