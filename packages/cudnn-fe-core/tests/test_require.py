"""Checks that contracts share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_fe.core.errors import DTypeError, OptionError
from cudnn_fe.core.require import require_dtype, require_one_of
from cudnn_fe.core.tensor import spec_of


def test_a_type_that_is_allowed_twice_is_named_once() -> None:
    with pytest.raises(DTypeError, match="x: got int32, wanted float64 or float32; cast"):
        require_dtype(spec_of(np.zeros(3, np.int32), "x"), "float64", "float32", "float64")


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (64.0, (32, 64)),
        (True, (0, 1)),
        (1, (None, True, False)),
        (np.float32(1), (1,)),
        (np.ones(2), (1, 2)),
        ([], ("a",)),
    ],
)
def test_what_equals_an_allowed_value_but_is_of_another_kind_is_refused(value: Any, allowed: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError, match=r"size: got .*, wanted one of"):
        require_one_of(value, "size", allowed)


def test_allowed_values_pass() -> None:
    for value, allowed in ((64, (32, 64)), (np.int64(64), (32, 64)), (None, (None, True)), (False, (True, False))):
        require_one_of(value, "size", allowed)
    require_one_of("log", "domain", ("log", "linear"))
