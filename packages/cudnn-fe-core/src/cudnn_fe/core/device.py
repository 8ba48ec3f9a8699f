"""What a device can do, asked of the CUDA driver without any framework."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from functools import lru_cache

from cudnn_fe.core.errors import MissingDeviceError

__all__ = ["Device", "compile_target", "cuda_device_count", "device"]

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute


@dataclass(frozen=True, slots=True)
class Device:
    """A device as kernels see it.

    Attributes:
        place: ``"cpu"`` or ``"cuda:<index>"``.
        capability: Compute capability, e.g. ``(9, 0)``; ``(0, 0)`` on a CPU.
        multiprocessors: Number of SMs; 0 on a CPU.
        name: Product name.
    """

    place: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    name: str = "cpu"

    @property
    def arch(self) -> str:
        """The compiler's target, e.g. ``"sm_90a"``: the newest instruction set that this chip alone runs."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL | None:
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):  # ctypes' own search starts a compiler
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        return driver if driver.cuInit(0) == 0 else None
    return None


@lru_cache(maxsize=1)
def cuda_device_count() -> int:
    """Number of CUDA devices that this process can use."""
    driver = _driver()
    count = ctypes.c_int(0)
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


@lru_cache(maxsize=64)
def device(place: str) -> Device:
    """The device at ``"cpu"`` or ``"cuda:<index>"``.

    Raises:
        MissingDeviceError: There is no such device.
    """
    if place == "cpu":
        return Device("cpu")
    named = re.fullmatch(r"cuda(?::(\d+))?", place)
    index = int(named[1] or 0) if named else -1
    if not 0 <= index < cuda_device_count():
        raise MissingDeviceError(
            "device",
            got=place,
            wanted=f"cpu or one of {cuda_device_count()} CUDA devices",
            remedy="move the operands to a device that this process can see",
        )
    driver, handle, value = _driver(), ctypes.c_int(), ctypes.c_int()
    assert driver is not None  # a device was counted
    driver.cuDeviceGet(ctypes.byref(handle), index)

    def attribute(number: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value

    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, handle)
    return Device(place, (attribute(_MAJOR), attribute(_MINOR)), attribute(_MULTIPROCESSORS), name.value.decode())


# Multiprocessors of the chip that an architecture stands for when no device is present.
_TYPICAL_MULTIPROCESSORS = {8: 108, 9: 132, 10: 148, 12: 170}


def compile_target() -> Device | None:
    """The device to compile for where no operand says one: what ``CUTE_DSL_ARCH`` names, else the first GPU.

    Returns:
        None where there is neither.
    """
    named = re.fullmatch(r"sm_?(\d+)(\d)[a-z]?", os.environ.get("CUTE_DSL_ARCH", ""))
    if named:
        capability = int(named[1]), int(named[2])
        return Device("cuda:0", capability, _TYPICAL_MULTIPROCESSORS.get(capability[0], 128), named[0])
    return device("cuda:0") if cuda_device_count() else None
