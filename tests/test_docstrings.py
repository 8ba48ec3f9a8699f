"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from lazy_imports import module_name

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    module_name(path, source)
    for source in ROOT.glob("packages/*/src")
    for path in source.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
