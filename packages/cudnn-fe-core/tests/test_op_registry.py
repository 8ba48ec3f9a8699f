"""Ops are found by every name they have, once each, installed or merely on the path."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import cudnn_fe
from cudnn_fe.core import registry
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, op_named
from cudnn_fe.core.registry import families, find_op, ops
from cudnn_fe_testkit.toy import TOY, Toy, toy_op

OUTSIDER = """
from cudnn_fe.core.registry import Family
FAMILY = Family("outsider", "cudnn-fe-outsider", ("cudnn_fe_testkit.toy:TOY",), {"toy": "cudnn_fe_testkit.toy:toy"})
"""


@pytest.fixture
def fresh_families() -> Iterator[None]:
    families.cache_clear()
    yield
    families.cache_clear()


def test_installed_families_and_their_ops_are_found() -> None:
    gemm = next(family for family in families() if family.name == "gemm")
    assert gemm.package == "cudnn-fe-gemm"
    public = {op.name for op in ops()}
    assert "gemm_swiglu_forward" in public
    assert "matmul" not in public
    assert "matmul" in {op.name for op in ops(public=False)}


def test_an_op_is_found_by_each_of_its_names() -> None:
    op = op_named("gemm_swiglu_forward")
    for name in (op.name, op.jax_name, *op.legacy):
        assert name
        assert find_op(name) is op
    assert find_op("gemm_sigmoid_forward") is None


@pytest.mark.usefixtures("fresh_families")
def test_a_checkout_on_the_path_counts_beside_installed_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cudnn_fe" / "outsider"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "exports.py").write_text(OUTSIDER)
    monkeypatch.setattr(cudnn_fe, "__path__", [*cudnn_fe.__path__, str(folder.parent)])
    assert {"gemm", "outsider"} <= {family.name for family in families()}
    assert find_op("toy") is TOY
    families.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    assert {"gemm", "outsider"} <= {family.name for family in families()}
    for name in ("cudnn_fe.outsider", "cudnn_fe.outsider.exports"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("fresh_families")
def test_two_copies_of_a_family_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metadata.entry_points(group=registry.ENTRY_POINTS)
    monkeypatch.setattr(metadata, "entry_points", lambda group: (*found, *found))
    names = [family.name for family in families()]
    assert len(names) == len(set(names))


def test_an_op_of_another_package_cannot_take_a_name_but_a_reloaded_one_can() -> None:
    assert toy_op("toy_reloaded") is not toy_op("toy_reloaded")
    with pytest.raises(OptionError, match=r"^name: got 'toy' of elsewhere, .* cudnn-fe-testkit"):
        Op(name="toy", package="elsewhere", problem=Toy, reference="", kernels=(), summary="")
    assert op_named("toy") is TOY


def test_copies_and_pickles_of_an_op_are_the_op() -> None:
    assert copy.deepcopy(TOY) is TOY
    assert pickle.loads(pickle.dumps(TOY)) is TOY
    assert TOY.support() == {"reference": "run everywhere", "portable": "compiled"}
