"""The first kernel that does not refuse serves; where all do, one error holds every reason."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_fe.core import choose as module
from cudnn_fe.core.choose import choose
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import BackendError, MissingDeviceError, UnknownBackendError
from cudnn_fe.core.settings import override
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe_testkit.toy import Toy, ToySpec, kernel, toy_op

H200 = Device("cuda:0", (9, 0), 132, "chip")
OP = toy_op(
    "toy_choice",
    kernel("sm90", refuse=lambda problem, where: "it wants even rows" if problem.x.shape[0] % 2 else None),
    kernel("portable", refuse=lambda problem, where: "it wants few rows" if problem.x.shape[0] > 8 else None),
    kernel("sm100", opt_in=True),
)


def problem(rows: int, place: str = "cuda:0") -> Toy:
    return Toy.bind(TensorSpec((rows, 4), (4, 1), dtype("float32"), place), None)


def test_the_best_kernel_that_serves_is_chosen_and_specialised() -> None:
    choice = choose(OP, problem(2), on=H200)
    assert (choice.backend, choice.spec) == ("sm90", ToySpec("float32", 16))
    assert choose(OP, problem(3), on=H200).backend == "portable"


def test_every_reason_is_in_one_error() -> None:
    with pytest.raises(BackendError) as caught:
        choose(OP, problem(9), on=H200)
    text = str(caught.value)
    for part in ("toy_choice", "sm90: it wants even rows", "portable: it wants few rows", "sm100: ", "chip (cuda:0)"):
        assert part in text
    assert 'backend="reference"' in caught.value.remedy


def test_naming_a_backend_means_that_one_or_an_error() -> None:
    assert choose(OP, problem(2), "portable", on=H200).backend == "portable"
    assert choose(OP, problem(9), "reference", on=H200).kernel is None
    with pytest.raises(BackendError, match=r"got sm90: it wants even rows, wanted"):
        choose(OP, problem(3), "sm90", on=H200)


def test_opt_in_kernels_serve_only_by_name() -> None:
    assert choose(OP, problem(9), "sm100", on=H200).backend == "sm100"
    with pytest.raises(BackendError, match="got sm100: its tests are not known to pass on such a chip"):
        choose(toy_op("toy_opt_in", kernel("sm100", opt_in=True)), problem(2), on=H200)


def test_an_op_without_kernels_says_so_on_a_gpu_and_runs_on_a_cpu() -> None:
    bare = toy_op("toy_bare")
    with pytest.raises(BackendError, match="got the op has no kernels yet"):
        choose(bare, problem(2), on=H200)
    assert choose(bare, problem(2, "cpu")).backend == "reference"


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_an_unknown_backend_is_refused_with_the_list(place: str) -> None:
    with pytest.raises(
        UnknownBackendError, match=r"^backend: got 'fast', wanted auto or one of reference, sm90, portable, sm100"
    ):
        choose(OP, problem(2, place), "fast", on=H200 if place == "cuda:0" else None)


def test_a_named_kernel_refuses_operands_on_the_cpu() -> None:
    with pytest.raises(BackendError, match=r"got portable: the operands are on the CPU"):
        choose(OP, problem(2, "cpu"), "portable")


def test_the_setting_is_the_default_and_the_call_overrides_it() -> None:
    with override(backend="reference"):
        assert choose(OP, problem(2), on=H200).backend == "reference"
        assert choose(OP, problem(2), "auto", on=H200).backend == "sm90"
    with override(backend="portable"), pytest.raises(BackendError, match="the operands are on the CPU"):
        choose(OP, problem(2, "cpu"))


def test_degenerate_problems_need_no_kernel_but_a_known_name() -> None:
    assert choose(OP, problem(0), on=H200).kernel is None
    assert choose(OP, problem(0), "portable", on=H200) == module.Choice("portable")
    with pytest.raises(BackendError, match="got 'fast'"):
        choose(OP, problem(0), "fast", on=H200)


def test_a_missing_compiler_is_a_reason_of_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing_toolchain", lambda: "nvidia-cutlass-dsl is not installed")
    with pytest.raises(
        BackendError, match=r"sm90: nvidia-cutlass-dsl is not installed; portable: nvidia-cutlass-dsl is"
    ):
        choose(OP, problem(2), on=H200)


def test_a_device_that_is_not_there_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(place: str) -> Any:
        raise MissingDeviceError("device", got=place, wanted="cpu", remedy="move it")

    monkeypatch.setattr(module, "device", absent)
    with pytest.raises(MissingDeviceError, match="got cuda:0"):
        choose(OP, problem(2))
