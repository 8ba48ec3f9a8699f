"""What serves a GPU while an op has no kernels, and namespace objects."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from cudnn_fe.core import experimental
from cudnn_fe.core.choose import REFERENCE, choose
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import BackendError
from cudnn_fe.core.namespace import Namespace
from cudnn_fe.core.op import Kernel, Op, Problem
from cudnn_fe.core.tensor import TensorSpec

HOPPER = Device("cuda:0", (9, 0), 132, "H200")


@dataclass(frozen=True)
class Copy(Problem):
    operands: ClassVar[tuple[str, ...]] = ("x",)
    x: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        assert operands[0] is not None
        return cls(operands[0])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.x,)

    @property
    def degenerate(self) -> bool:
        return False

    @property
    def flops(self) -> int:
        return 0


PROBLEM = Copy(TensorSpec((4,), (1,), dtype("float32"), "cuda:0"))
NEVER = Kernel("sm90", "nowhere", lambda problem, where: "it never does", lambda problem, where: (), ())


def op(*kernels: Kernel, flag: bool = True) -> Op:
    return Op("test_copy", "tests", Copy, "nowhere:copy", kernels, "Copies.", reference_on_gpu=flag)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    experimental._reset_for_tests()
    yield
    experimental._reset_for_tests()


def test_the_reference_runs_on_a_gpu_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="test_copy has no GPU kernels yet"):
        assert choose(op(), PROBLEM, on=HOPPER).backend == REFERENCE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(op(), PROBLEM, on=HOPPER).backend == REFERENCE
    assert "with a warning" in op().support()["reference"]


def test_asking_for_the_reference_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(op(), PROBLEM, REFERENCE, on=HOPPER).backend == REFERENCE
        assert choose(op(), PROBLEM, on=Device("cpu")).backend == REFERENCE


@pytest.mark.parametrize("made", [op(flag=False), op(NEVER)])
def test_no_other_op_falls_back(made: Op) -> None:
    with pytest.raises(BackendError):
        choose(made, PROBLEM, on=HOPPER)
    assert made.support()["reference"] == "run everywhere"


def test_a_backend_that_is_named_is_meant() -> None:
    with pytest.raises(BackendError, match="backend: got 'sm90'"):
        choose(op(), PROBLEM, "sm90", on=HOPPER)


def test_namespaces_import_on_first_use() -> None:
    space = Namespace("Things", {"dtype": "cudnn_fe.core.dtypes:dtype", "missing": "cudnn_fe.nowhere:x"})
    assert space.dtype is dtype
    assert dir(space) == ["dtype", "missing"]
    assert repr(space) == "<Things: dtype, missing>"
    with pytest.raises(ImportError):
        _ = space.missing
    with pytest.raises(AttributeError, match="Things has no attribute 'other'"):
        _ = space.other
