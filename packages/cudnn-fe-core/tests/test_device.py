"""Devices, with and without a driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from cudnn_fe.core import device as module
from cudnn_fe.core.device import Device, compile_target, cuda_device_count, device
from cudnn_fe.core.errors import MissingDeviceError


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No device known, and none remembered afterwards."""

    def clear() -> None:
        for cached in (module._driver, module.cuda_device_count, module.device):
            cached.cache_clear()

    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    clear()
    yield monkeypatch
    clear()


class Driver:
    """Two devices, as the CUDA driver tells of them."""

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's names
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802
        handle._obj.value = index
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, handle: Any) -> int:  # noqa: N802
        value._obj.value = {16: 132, 75: 9, 76: 0}[number] if handle.value == 0 else {16: 108, 75: 8, 76: 0}[number]
        return 0

    def cuDeviceGetName(self, name: Any, size: int, handle: Any) -> int:  # noqa: N802
        name.value = b"chip %d" % handle.value
        return 0


def test_the_driver_is_asked(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(ctypes, "CDLL", lambda name: Driver())
    assert cuda_device_count() == 2
    assert device("cuda:0") == Device("cuda:0", (9, 0), 132, "chip 0")
    assert device("cuda").capability == (9, 0)
    assert device("cuda:1") == Device("cuda:1", (8, 0), 108, "chip 1")
    assert compile_target() == device("cuda:0")


def test_without_a_driver_there_is_a_cpu_and_no_gpu(fresh: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    fresh.setattr(ctypes, "CDLL", missing)
    assert cuda_device_count() == 0
    assert device("cpu") == Device("cpu", (0, 0), 0, "cpu")
    assert compile_target() is None
    for place in ("cuda:0", "cuda", "cuda:x", "tpu:0"):
        with pytest.raises(MissingDeviceError, match=rf"^device: got {place}, wanted cpu or one of 0 CUDA devices"):
            device(place)


def test_a_driver_that_does_not_start_counts_as_none(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(Driver, "cuInit", lambda self, flags: 100)
    fresh.setattr(ctypes, "CDLL", lambda name: Driver())
    assert cuda_device_count() == 0


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 1), "sm_121a")],
)
def test_architecture_of_a_capability(capability: tuple[int, int], arch: str) -> None:
    assert Device("cuda:0", capability).arch == arch


@pytest.mark.parametrize(
    ("named", "capability"),
    [("sm_90a", (9, 0)), ("sm90", (9, 0)), ("sm_100a", (10, 0)), ("sm_103f", (10, 3)), ("sm_121a", (12, 1))],
)
def test_the_environment_names_a_target(fresh: pytest.MonkeyPatch, named: str, capability: tuple[int, int]) -> None:
    fresh.setenv("CUTE_DSL_ARCH", named)
    target = compile_target()
    assert target is not None
    assert target.capability == capability
    assert target.multiprocessors > 0
