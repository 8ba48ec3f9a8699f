"""The command `cudnn-fe doctor`: what is installed, what is wrong with it, and what each op would run on here."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cudnn._cli.console import output, print_json, table

if TYPE_CHECKING:
    from rich.console import Console

    from cudnn._cli.findings import Finding
    from cudnn._cli.serving import Serving

__all__ = ["CacheState", "doctor"]

SHOWN_PACKAGES = (
    "cudnn-fe",
    "cudnn-fe-core",
    "cudnn-fe-gemm",
    "torch",
    "jax",
    "numpy",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
)


@dataclass(frozen=True, slots=True)
class CacheState:
    """The folder of compiled kernels.

    Attributes:
        folder: Where; empty if there is none.
        state: ``"writable"``, ``"not there yet"``, ``"read-only"`` or ``"off"``.
        kernels: Number of entries.
        nbytes: Their size.
    """

    folder: str
    state: str
    kernels: int = 0
    nbytes: int = 0


def _cache_state() -> CacheState:
    from cudnn_fe.core.object_cache import object_cache

    cache = object_cache()
    if cache is None:
        return CacheState("", "off")
    if not cache.folder.exists():
        return CacheState(str(cache.folder), "not there yet")
    entries = cache.entries()
    state = "writable" if os.access(cache.folder, os.W_OK) else "read-only"
    return CacheState(str(cache.folder), state, len(entries), sum(entry.nbytes for entry in entries))


def _servings() -> list[Serving]:
    from cudnn._cli.serving import devices, sample_problem, serving
    from cudnn_fe.core.registry import ops

    return [serving(op, where, sample_problem(op, where.place)) for where in devices() for op in ops()]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a report of a problem.")] = False,
) -> None:
    """Examine this environment: versions, conflicts, GPUs, the kernel cache, and what each op would run on.

    The exit code is 1 if something needs action.

    Example: [bold]cudnn-fe doctor --json > report.json[/]
    """
    from cudnn._cli.findings import findings
    from cudnn.collect_env import collect_env_info

    report = collect_env_info()
    found, cache, servings = findings(report), _cache_state(), _servings()
    problems = any(finding.level == "problem" for finding in found)
    if as_json:
        print_json(
            {
                "environment": report,
                "findings": [asdict(finding) for finding in found],
                "cache": asdict(cache),
                "ops": [asdict(row) for row in servings],
            }
        )
    else:
        console = output()
        _print_environment(console, report, cache)
        _print_servings(console, servings)
        _print_findings(console, found)
    if problems:
        raise typer.Exit(1)


def _print_environment(console: Console, report: dict[str, dict[str, str]], cache: CacheState) -> None:
    def value(section: str, key: str) -> str:
        return report.get(section, {}).get(key, "not installed" if section == "packages" else "unknown")

    gpus = [text for key, text in report.get("gpu", {}).items() if key.startswith("cuda:")]
    facts = [
        ("python", f"{value('platform', 'python')} on {value('platform', 'platform')}"),
        ("driver", " ".join(filter(None, (value("gpu", "driver"), report.get("gpu", {}).get("driver release"))))),
        *[("gpu", text) for text in gpus or ["none"]],
        *[(name, value("packages", name).partition(" (")[0]) for name in SHOWN_PACKAGES],
        ("cache", f"{cache.folder or 'none'} ({cache.state}, {cache.kernels} kernels, {cache.nbytes / 2**20:.1f} MiB)"),
    ]
    console.print("[bold]Environment[/]")
    for name, text in facts:
        console.print(f"  [dim]{name:20}[/] {text}", soft_wrap=name == "cache")
    console.print()


def _print_servings(console: Console, servings: list[Serving]) -> None:
    rows = [
        (row.op, row.place, f"[bold]{row.backend}[/]", "\n".join(f"{name}: {reason}" for name, reason in row.others))
        for row in servings
    ]
    title = "What an ordinary bfloat16 call would run on"
    console.print(table(title, ("op", "device", "runs", "and why not the others"), rows))


def _print_findings(console: Console, found: list[Finding]) -> None:
    for finding in found:
        colour = "red" if finding.level == "problem" else "yellow"
        remedy = f": {finding.remedy}" if finding.remedy else ""
        console.print(f"[{colour}]{finding.level}[/] {finding.what}{remedy}", soft_wrap=True)
    if not any(finding.level == "problem" for finding in found):
        console.print("[bold green]Nothing needs action.[/]")
