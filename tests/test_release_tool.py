"""The release tool, on a repository made for the test."""

import datetime
import subprocess
from pathlib import Path

import pytest
import release

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "thing"
dynamic = ["version"]
[tool.hatch.version]
path = "src/thing/_version.py"
"""
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- It does a thing.\n"
DAY = datetime.date(2030, 1, 2)


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--message", "a change")


@pytest.fixture
def thing(tmp_path: Path) -> release.Package:
    """A repository of one package, committed, and released never."""
    folder = tmp_path / "packages" / "thing"
    (folder / "src" / "thing").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "src" / "thing" / "_version.py").write_text('__version__ = "0.1.0"\n')
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--initial-branch=main")
    commit(tmp_path)
    return release.packages(tmp_path)["thing"]


def refusal(root: Path, package: release.Package) -> str:
    with pytest.raises(release.ReleaseError) as caught:
        release.require_entry(root, package, release.last_release(root, package))
    return str(caught.value)


def test_first_release_needs_an_entry(tmp_path: Path, thing: release.Package) -> None:
    release.require_entry(tmp_path, thing, release.last_release(tmp_path, thing))
    thing.changelog.write_text("# Changelog\n\n## [Unreleased]\n")
    assert "packages/thing/CHANGELOG.md has no new entry; add one under ## [Unreleased]" in refusal(tmp_path, thing)


@pytest.mark.parametrize("committed", [True, False])
def test_change_since_the_tag_needs_a_new_entry(tmp_path: Path, thing: release.Package, committed: bool) -> None:
    git(tmp_path, "tag", "thing-v0.1.0")
    release.require_entry(tmp_path, thing, "thing-v0.1.0")
    (thing.folder / "src" / "thing" / "__init__.py").write_text("value = 1\n")
    if committed:
        commit(tmp_path)
    said = refusal(tmp_path, thing)
    assert "thing: 1 files changed since thing-v0.1.0 (packages/thing/src/thing/__init__.py" in said
    thing.changelog.write_text(CHANGELOG + "- It has a value.\n")
    release.require_entry(tmp_path, thing, release.last_release(tmp_path, thing))


def test_tests_and_readme_need_no_entry(tmp_path: Path, thing: release.Package) -> None:
    git(tmp_path, "tag", "thing-v0.1.0")
    (thing.folder / "tests").mkdir()
    (thing.folder / "tests" / "test_thing.py").write_text("")
    (thing.folder / "README.md").write_text("# thing\n")
    release.require_entry(tmp_path, thing, release.last_release(tmp_path, thing))


def test_another_packages_tag_is_no_release_of_this_one(tmp_path: Path, thing: release.Package) -> None:
    git(tmp_path, "tag", "thing-more-v0.1.0")
    assert release.last_release(tmp_path, thing) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    git(tmp_path, "tag", "thing-v0.1.0")
    assert release.last_release(tmp_path, thing) == "thing-v0.1.0"
    assert release.last_release(tmp_path, thing, but="thing-v0.1.0") == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def test_unknown_base_is_named(tmp_path: Path, thing: release.Package) -> None:
    with pytest.raises(release.ReleaseError, match="nowhere is no commit of this repository"):
        release.require_entry(tmp_path, thing, "nowhere")


def test_bump_moves_version_and_closes_section(tmp_path: Path, thing: release.Package) -> None:
    assert release.bump(tmp_path, thing, "minor", release.last_release(tmp_path, thing), DAY) == "0.2.0"
    assert thing.version() == "0.2.0"
    closed = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2030-01-02\n\n- It does a thing.\n"
    assert thing.changelog.read_text() == closed


def test_bump_refuses_an_empty_section_and_writes_nothing(tmp_path: Path, thing: release.Package) -> None:
    old = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2029-01-01\n\n- It does a thing.\n"
    thing.changelog.write_text(old)
    with pytest.raises(release.ReleaseError, match=r"\[Unreleased\] is empty"):
        release.bump(tmp_path, thing, "patch", release.last_release(tmp_path, thing), DAY)
    assert (thing.changelog.read_text(), thing.version()) == (old, "0.1.0")


def test_build_refuses_a_version_without_a_section(tmp_path: Path, thing: release.Package) -> None:
    with pytest.raises(release.ReleaseError, match=r"no section for 0\.1\.0; run --bump first"):
        release.build(tmp_path, thing, release.last_release(tmp_path, thing), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_tag_names_package_and_version(tmp_path: Path, thing: release.Package) -> None:
    known = release.packages(tmp_path)
    assert release.package_of("thing-v0.1.0", known) == thing
    with pytest.raises(release.ReleaseError, match=r"says 0\.2\.0, but thing is at 0\.1\.0"):
        release.package_of("thing-v0.2.0", known)
    with pytest.raises(release.ReleaseError, match="names none of thing"):
        release.package_of("other-v0.1.0", known)
