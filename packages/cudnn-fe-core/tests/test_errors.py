"""Typed errors say operand, what was got, what is wanted, what to do, and are of the kinds that callers catch."""

from __future__ import annotations

import copy
import pickle

import pytest

from cudnn_fe.core import errors
from cudnn_fe.core.errors import CudnnFeError

KINDS: dict[str, tuple[type[Exception], ...]] = {
    "ShapeError": (ValueError,),
    "StrideError": (ValueError,),
    "DTypeError": (ValueError,),
    "DeviceError": (ValueError,),
    "MissingDeviceError": (ValueError, RuntimeError),
    "OptionError": (ValueError,),
    "OptionTypeError": (TypeError, ValueError),
    "AliasError": (ValueError,),
    "AlignmentError": (ValueError,),
    "FrameworkError": (TypeError, ValueError),
    "NotYetSupportedError": (NotImplementedError,),
    "BackendError": (NotImplementedError, RuntimeError),
    "UnknownBackendError": (ValueError, NotImplementedError, RuntimeError),
    "NotCompiledError": (RuntimeError,),
    "MissingPackageError": (ImportError,),
}


def test_every_error_is_in_the_table_below() -> None:
    assert {*KINDS, "CudnnFeError"} == set(errors.__all__)


@pytest.mark.parametrize("name", KINDS)
def test_kind_message_and_way_through_pickle(name: str) -> None:
    kind: type[CudnnFeError] = getattr(errors, name)
    error = kind("x", got="1", wanted="2", remedy="add 1")
    for base in KINDS[name]:
        assert isinstance(error, base)
    assert str(error) == "x: got 1, wanted 2; add 1"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (again.operand, again.got, again.wanted, again.remedy) == ("x", "1", "2", "add 1")
        assert str(again) == str(error)
