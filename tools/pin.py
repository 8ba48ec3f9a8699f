"""Pins the exact version of everything the workspace installs, transitive and build requirements included.

    uv run python tools/pin.py            # resolve afresh and rewrite the pins in pyproject.toml
    uv run python tools/pin.py --check    # say what the present resolution holds that no pin names, and the reverse

The pins stand in `[tool.uv] constraint-dependencies` and `build-constraint-dependencies`: a lock file would record
download addresses too, which the repository does not hold.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
BUILD_GROUP = "build-requirements-of-all-members"


@dataclass(frozen=True, order=True)
class Pin:
    """One version of one package, and where it applies.

    Attributes:
        name: Normalised package name.
        version: The exact version.
        marker: Environment marker, or "" when the version holds everywhere.
    """

    name: str
    version: str
    marker: str = ""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def pins_of(lock: dict[str, Any]) -> list[Pin]:
    """The pins that a uv lock file amounts to: one for each version that comes from a registry."""
    versions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for package in lock["package"]:
        if "registry" in package["source"]:
            versions[package["name"]].append(package)
    return sorted(
        Pin(name, package["version"], " or ".join(sorted(package["resolution-markers"])) if len(packages) > 1 else "")
        for name, packages in versions.items()
        for package in packages
    )


def closure(lock: dict[str, Any], roots: Iterable[str]) -> frozenset[str]:
    """The names of all packages that ``roots`` need, themselves included."""
    needs: dict[str, set[str]] = defaultdict(set)
    for package in lock["package"]:
        needs[package["name"]].update(dependency["name"] for dependency in package.get("dependencies", ()))
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(needs[name])
    return frozenset(found)


def _load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def _members(root: Path) -> list[Path]:
    patterns = _load(root / "pyproject.toml")["tool"]["uv"]["workspace"]["members"]
    return sorted(path.parent for pattern in patterns for path in root.glob(f"{pattern}/pyproject.toml"))


def build_requirements(root: Path) -> list[str]:
    """What the workspace members' isolated builds ask for."""
    return sorted(
        {need for member in _members(root) for need in _load(member / "pyproject.toml")["build-system"]["requires"]}
    )


def resolve(root: Path) -> dict[str, Any]:
    """Resolves the workspace at ``root`` with no pin and no lock file in its way; returns the lock."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for member in _members(root):
            ignored = shutil.ignore_patterns("tests", "dist", "__pycache__", "*.egg-info")
            shutil.copytree(member, copy / member.relative_to(root), ignore=ignored)
        document = tomlkit.parse((root / "pyproject.toml").read_text()).unwrap()
        for key in ("constraint-dependencies", "build-constraint-dependencies"):
            document["tool"]["uv"].pop(key, None)
        document["dependency-groups"][BUILD_GROUP] = build_requirements(root)
        (copy / "pyproject.toml").write_text(tomlkit.dumps(document))
        subprocess.run(["uv", "lock", "--quiet", "--project", str(copy)], check=True)
        return _load(copy / "uv.lock")


def write(root: Path, pins: list[Pin], build: list[Pin]) -> None:
    """Writes the pins into the root pyproject.toml, leaving the rest of it as it is."""
    path = root / "pyproject.toml"
    document = tomlkit.parse(path.read_text())
    settings = document["tool"]["uv"]
    for key, entries in (("constraint-dependencies", pins), ("build-constraint-dependencies", build)):
        array = tomlkit.array()
        array.extend(str(pin) for pin in entries)
        settings[key] = array.multiline(True)
    path.write_text(tomlkit.dumps(document))


def disagreements(locked: list[Pin], pinned: Iterable[str]) -> list[str]:
    """What is locked without a pin, and what is pinned without being locked."""
    requirements = [Requirement(text) for text in pinned]
    have = {(canonicalize_name(need.name), str(need.specifier)) for need in requirements}
    want = {(canonicalize_name(pin.name), f"=={pin.version}") for pin in locked}
    missing = [f"no pin for {name}{version}" for name, version in sorted(want - have)]
    return missing + [f"pinned, but not needed: {name}{version}" for name, version in sorted(have - want)]


def check(root: Path) -> list[str]:
    """The disagreements between the pins and what they resolve to, which `uv lock` brings up to date first."""
    subprocess.run(["uv", "lock", "--quiet", "--project", str(root)], check=True)
    settings = _load(root / "pyproject.toml")["tool"]["uv"]
    lock = _load(root / "uv.lock")
    pins = pins_of(lock)
    names = closure(lock, (canonicalize_name(Requirement(need).name) for need in build_requirements(root)))
    build = [pin for pin in pins if pin.name in names]
    return disagreements(pins, settings.get("constraint-dependencies", ())) + [
        f"build: {fault}" for fault in disagreements(build, settings.get("build-constraint-dependencies", ()))
    ]


def main() -> int:
    """Rewrites the pins, or checks them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 when a pin is missing or stale"
    )
    if parser.parse_args().check:
        faults = check(ROOT)
        print("\n".join(faults) if faults else "every installed package is pinned")
        if faults:
            print("run: uv run python tools/pin.py")
        return 1 if faults else 0
    lock = resolve(ROOT)
    pins = pins_of(lock)
    names = closure(lock, (canonicalize_name(Requirement(need).name) for need in build_requirements(ROOT)))
    write(ROOT, pins, [pin for pin in pins if pin.name in names])
    print(f"{len(pins)} pins written to pyproject.toml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
