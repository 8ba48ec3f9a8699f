"""Results read by name and by position."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import pytest

from cudnn_fe.core.tuple_dict import TupleDict


def made() -> TupleDict:
    return TupleDict(first=1, second=None, third=3)


def test_unpacks_values_in_order_of_construction_and_keeps_none() -> None:
    first, second, third = made()
    assert (first, second, third) == (1, None, 3)
    assert list(made()) == [1, None, 3]
    assert (*made(),) == (1, None, 3)
    assert list(TupleDict({"b": 1}, a=2)) == [1, 2]


def test_is_a_dict_by_key() -> None:
    td = made()
    assert td["third"] == 3
    assert td == {"third": 3, "second": None, "first": 1}
    assert (list(td.keys()), list(td.values()), len(td)) == (["first", "second", "third"], [1, None, 3], 3)
    assert "first" in td
    assert 1 not in td
    assert dict(td) == {**td} == json.loads(json.dumps(td)) == {"first": 1, "second": None, "third": 3}
    assert td.get("none", 7) == 7


@pytest.mark.parametrize("position", [-1, 3])
def test_positions_outside_are_refused_negative_ones_too(position: int) -> None:
    with pytest.raises(IndexError, match=rf"position {position} is outside 0\.\.2"):
        made()[position]


def test_unknown_keys_raise_key_error_and_it_is_unhashable() -> None:
    with pytest.raises(KeyError, match="nothing"):
        made()["nothing"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(made())


@pytest.mark.parametrize(
    "through", [lambda td: td, copy.copy, copy.deepcopy, TupleDict.copy, lambda td: pickle.loads(pickle.dumps(td))]
)
def test_keys_added_later_are_reachable_by_name_only_also_in_copies(through: Callable[[TupleDict], TupleDict]) -> None:
    td = made()
    td["late"] = 4
    found = through(td)
    assert type(found) is TupleDict
    assert list(found) == [1, None, 3]
    assert found["late"] == 4
    with pytest.raises(IndexError):
        found[3]
