"""Releases one package: bumps its version, holds its changelog to account, builds its sdist and wheel.

    uv run python tools/release.py --check                       # no package may have changed without an entry
    uv run python tools/release.py --bump minor cudnn-fe-gemm    # new version, changelog section closed under it
    uv run python tools/release.py cudnn-fe-gemm                 # build into dist/
    uv run python tools/release.py --tag cudnn-fe-gemm-v0.1.0    # build what the tag names; it must be the version

A package has changed when its sources or its pyproject.toml differ from its last tag (`<package>-v<version>`), from
`--base`, or, before the first tag, from nothing. An entry is a list item of its CHANGELOG.md that was not there then.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = "## [Unreleased]"
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\]", re.MULTILINE)


class ReleaseError(Exception):
    """A release that must not go out; the message says why and what to do."""


@dataclass(frozen=True)
class Package:
    """A published package of the workspace.

    Attributes:
        name: Its distribution name.
        folder: Where it stands.
    """

    name: str
    folder: Path

    @property
    def changelog(self) -> Path:
        """The package's changelog."""
        return self.folder / "CHANGELOG.md"

    def version(self, *wanted: str) -> str:
        """The version, after hatch has moved it as ``wanted`` (``"minor"``, say) asks.

        `hatch version` would run the same command in an environment that it makes in the user's home first.
        """
        command = [sys.executable, "-m", "hatchling", "version"]
        if wanted:
            subprocess.run([*command, *wanted], cwd=self.folder, check=True, capture_output=True)
        shown = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        return shown.stdout.strip()


def packages(root: Path) -> dict[str, Package]:
    """The workspace's published packages by name."""
    files = sorted(root.glob("packages/*/pyproject.toml"))
    return {
        name: Package(name, file.parent)
        for file in files
        for name in [tomllib.loads(file.read_text())["project"]["name"]]
    }


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def last_release(root: Path, package: Package, *, but: str | None = None) -> str:
    """The tag of the package's last release, leaving out ``but``; the empty tree when it has none."""
    exclude = ["--exclude", but] if but else []
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match", f"{package.name}-v[0-9]*", *exclude)
    return tag.strip() if tag else (_git(root, "hash-object", "-t", "tree", "--stdin") or "").strip()


def changed_files(root: Path, package: Package, base: str) -> list[str]:
    """The package's files that differ from ``base`` in a way its users may notice, uncommitted ones included."""
    folder = package.folder.relative_to(root).as_posix()
    watched = [f"{folder}/src", f"{folder}/pyproject.toml"]
    differing = _git(root, "diff", "--name-only", base, "--", *watched)
    if differing is None:
        raise ReleaseError(f"{base} is no commit of this repository; fetch it, or name another with --base")
    added = _git(root, "ls-files", "--others", "--exclude-standard", "--", *watched) or ""
    return sorted({*differing.split(), *added.split()})


def entries(changelog: str) -> frozenset[str]:
    """The list items of a changelog."""
    return frozenset(line.strip() for line in changelog.splitlines() if line.lstrip().startswith("- "))


def require_entry(root: Path, package: Package, base: str) -> None:
    """Refuses a package that changed since ``base`` without a new changelog entry.

    Raises:
        ReleaseError: It changed, and its changelog gained no list item.
    """
    changed = changed_files(root, package, base)
    before = _git(root, "show", f"{base}:{package.changelog.relative_to(root).as_posix()}") or ""
    now = package.changelog.read_text() if package.changelog.exists() else ""
    if changed and not entries(now) - entries(before):
        raise ReleaseError(
            f"{package.name}: {len(changed)} files changed since {base[:40]} ({changed[0]}, ...), but "
            f"{package.changelog.relative_to(root)} has no new entry; add one under {UNRELEASED}"
        )


def close_section(changelog: str, version: str, date: datetime.date) -> str:
    """The changelog with its unreleased section closed under ``version``, and an empty one opened above it."""
    if UNRELEASED not in changelog:
        raise ReleaseError(f"the changelog has no section {UNRELEASED}")
    section = HEADING.split(changelog.split(UNRELEASED, 1)[1])[0]
    if not entries(section):
        raise ReleaseError(f"the changelog's section {UNRELEASED} is empty; say what changed")
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {date.isoformat()}", 1)


def bump(root: Path, package: Package, part: str, base: str, date: datetime.date) -> str:
    """Moves the version by ``part`` (``"none"`` keeps it) and closes the changelog's section; returns the version."""
    require_entry(root, package, base)
    before = package.changelog.read_text()
    close_section(before, "checked before anything is written", date)
    version = package.version(*([] if part == "none" else [part]))
    package.changelog.write_text(close_section(before, version, date))
    return version


def build(root: Path, package: Package, base: str, out: Path) -> None:
    """Builds sdist and wheel of one package into ``out``.

    Raises:
        ReleaseError: It changed without an entry, or its version has no section in the changelog.
    """
    require_entry(root, package, base)
    version = package.version()
    if version not in HEADING.findall(package.changelog.read_text()):
        raise ReleaseError(f"{package.name}: the changelog has no section for {version}; run --bump first")
    subprocess.run(["uv", "build", "--package", package.name, "--out-dir", str(out)], cwd=root, check=True)


def package_of(tag: str, known: dict[str, Package]) -> Package:
    """The package that a release tag names.

    Raises:
        ReleaseError: The tag names no package, or not the version that stands in the tree.
    """
    name, _, version = tag.rpartition("-v")
    if name not in known:
        raise ReleaseError(f"tag {tag} names none of {', '.join(known)}; a tag reads <package>-v<version>")
    stands = known[name].version()
    if stands != version:
        raise ReleaseError(f"tag {tag} says {version}, but {name} is at {stands}; tag the commit that bumped it")
    return known[name]


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", help="the package's name, e.g. cudnn-fe-gemm")
    parser.add_argument(
        "--bump", choices=("patch", "minor", "major", "none"), help="none: release the version as it is"
    )
    parser.add_argument("--check", action="store_true", help="only say whether a package changed without an entry")
    parser.add_argument("--tag", help="build the package that this tag names")
    parser.add_argument("--base", help="compare with this commit, not with the package's last tag")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for sdist and wheel (dist)")
    chosen = parser.parse_args()
    known = packages(ROOT)
    try:
        if chosen.tag:
            chosen.package = package_of(chosen.tag, known).name
        if chosen.package is None and not chosen.check:
            parser.error("name a package")
        if chosen.package is not None and chosen.package not in known:
            parser.error(f"no package {chosen.package}; there are {', '.join(known)}")
        for package in [known[chosen.package]] if chosen.package else known.values():
            base = chosen.base or last_release(ROOT, package, but=chosen.tag)
            if chosen.check:
                require_entry(ROOT, package, base)
            elif chosen.bump:
                version = bump(ROOT, package, chosen.bump, base, datetime.datetime.now(datetime.UTC).date())
                print(f"{package.name} {version}: commit, then tag {package.name}-v{version}")
            else:
                build(ROOT, package, base, chosen.out)
    except ReleaseError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
