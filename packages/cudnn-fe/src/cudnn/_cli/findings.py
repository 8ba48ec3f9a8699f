"""What is wrong, or worth knowing, about the installed packages: rules over the environment report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

__all__ = ["Finding", "findings"]

Packages = dict[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation.

    Attributes:
        level: ``"problem"`` needs action; ``"note"`` does not.
        what: The observation.
        remedy: What to do, or empty.
    """

    level: Literal["problem", "note"]
    what: str
    remedy: str = ""


def findings(report: dict[str, dict[str, str]]) -> list[Finding]:
    """Every finding about a report of `cudnn.collect_env.collect_env_info`, problems first."""
    packages = report.get("packages", {})
    has_gpu = report.get("gpu", {}).get("count", "0") not in ("", "0")
    rules = (_vendor(packages), _twice(packages), _dsl(packages), _two_cudas(packages), _requirements(packages))
    found = [finding for rule in rules for finding in rule]
    found += _compiler(packages, has_gpu)
    return sorted(found, key=lambda finding: finding.level != "problem")


def _vendor(packages: Packages) -> Iterator[Finding]:
    if "nvidia-cudnn-frontend" in packages:
        yield Finding(
            "problem",
            f"nvidia-cudnn-frontend {packages['nvidia-cudnn-frontend']} also owns the import name `cudnn`",
            "pip uninstall nvidia-cudnn-frontend, then pip install --force-reinstall --no-deps cudnn-fe",
        )


def _twice(packages: Packages) -> Iterator[Finding]:
    for name, version in packages.items():
        if "installed twice" in version:
            yield Finding("problem", f"{name} {version}", f"pip uninstall {name} until none is left, then reinstall it")


def _dsl(packages: Packages) -> Iterator[Finding]:
    parts = {name: version for name, version in packages.items() if name.startswith("nvidia-cutlass-dsl")}
    if len(set(parts.values())) > 1:
        listed = ", ".join(f"{name.removeprefix('nvidia-')} {version}" for name, version in parts.items())
        wanted = parts.get("nvidia-cutlass-dsl", "VERSION")
        yield Finding(
            "problem",
            f"parts of the kernel compiler have different versions: {listed}",
            f'pip install --force-reinstall "nvidia-cutlass-dsl[cu13]=={wanted}"',
        )
    elif {"nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13"} <= parts.keys():
        yield Finding("note", "the kernel compiler's libraries are here for CUDA 12 and 13; the ones for 13 are used")


def _two_cudas(packages: Packages) -> Iterator[Finding]:
    for name in packages:
        other = f"{name.removesuffix('-cu12')}-cu13"
        if name.endswith("-cu12") and not name.startswith("nvidia-cutlass-dsl") and other in packages:
            yield Finding(
                "problem",
                f"{name} and {other} are both installed, into the same folders",
                "keep the one that your framework needs; a fresh environment is the sure way",
            )


def _requirements(packages: Packages) -> Iterator[Finding]:
    """The project's own packages against the ranges that they declare for one another."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return
    for name in packages:
        if not name.startswith("cudnn-fe") or "installed twice" in packages[name]:
            continue
        for text in _declared(name):
            wanted = Requirement(text)
            if re.match("cudnn-fe", wanted.name) is None or (wanted.marker and not wanted.marker.evaluate()):
                continue
            there = packages.get(wanted.name)
            if there is None or not wanted.specifier.contains(there, prereleases=True):
                yield Finding(
                    "problem",
                    f"{name} wants {wanted.name}{wanted.specifier}, and {there or 'none'} is installed",
                    f"pip install --upgrade {name}",
                )


def _declared(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # a report from elsewhere
        return []


def _compiler(packages: Packages, has_gpu: bool) -> list[Finding]:
    from cudnn_fe.core.toolchain import missing_toolchain

    missing = missing_toolchain()
    if missing is None:
        return []
    level: Literal["problem", "note"] = "problem" if has_gpu else "note"
    return [Finding(level, f"no kernel can be compiled: {missing}", 'pip install "nvidia-cutlass-dsl[cu13]"')]
