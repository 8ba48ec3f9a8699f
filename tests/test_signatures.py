"""Names and parameters of cudnn-frontend 1.32, as its documentation has them: calls written for it run unchanged."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest

import cudnn

SIGNATURES: dict[str, str] = json.loads((Path(__file__).with_name("signatures.json")).read_text())


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_their_order_and_defaults(name: str) -> None:
    scope: dict[str, object] = {}
    exec(f"def documented({SIGNATURES[name]}): pass", scope)
    documented = inspect.signature(scope["documented"]).parameters.values()  # type: ignore[arg-type]
    found = getattr(cudnn, name.removesuffix(".execute"))
    ours = dict(inspect.signature(found.execute if name.endswith(".execute") else found).parameters)
    ours.pop("self", None)
    shared = [p for p in ours.values() if p.name in {q.name for q in documented}]
    for p, wanted in zip(shared, documented, strict=True):
        default = getattr(p.default, "value", p.default)  # a string enum's member is its string
        assert (p.name, p.kind) == (wanted.name, wanted.kind)
        assert wanted.default in (default, inspect.Parameter.empty)
    # What there is beside them does not move them, and may be left out.
    more = [p for p in ours.values() if p not in shared]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


@pytest.mark.parametrize(("op", "new"), [("swiglu", "forward"), ("dswiglu", "backward")])
def test_jax_entries_that_only_their_module_has(op: str, new: str) -> None:
    entry = getattr(import_module(f"cudnn.gemm.cutedsl.grouped.{op}.jax_api"), f"grouped_gemm_{op}")
    assert entry is getattr(cudnn, f"grouped_gemm_swiglu_jax_{new}")
    assert not hasattr(cudnn, f"grouped_gemm_{op}_jax_sm100")
