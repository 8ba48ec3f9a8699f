"""Every Python block of the READMEs and docs pages runs, in order, one namespace a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cudnn_fe.core.op import Op
from cudnn_fe.core.registry import ops

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    path
    for pattern in ("README.md", "packages/*/README.md", "docs/*.md")
    for path in ROOT.glob(pattern)
    if BLOCK.search(path.read_text())
)


def run(text: str, path: Path, offset: int, namespace: dict[str, Any]) -> None:
    # Blank lines in front make a traceback point at the line of the page.
    exec(compile("\n" * offset + text, str(path), "exec"), namespace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda path: str(path.relative_to(ROOT))
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace: dict[str, Any] = {"__name__": "__example__"}
    for block in BLOCK.finditer(text):
        run(block[1], page, text.count("\n", 0, block.start(1)), namespace)


@pytest.mark.parametrize("op", ops(), ids=lambda op: op.name)
def test_op_example_runs(op: Op) -> None:
    assert op.example, f"{op.name} has no example"
    run(op.example, Path(f"{op.name}.example"), 0, {"__name__": "__example__"})


def test_docs_build_strictly_and_stand_alone(tmp_path: Path) -> None:
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    fetched = re.compile(r"""<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:""")
    assert [page for page in pages if fetched.search(page.read_text())] == []


def test_newcomers_commands_stand_in_the_readme() -> None:
    """The CI script takes them from there."""
    first = re.search(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert first is not None
    assert first[1] == "pip install uv && uv run cudnn-fe demo\nuv run pytest\n"
