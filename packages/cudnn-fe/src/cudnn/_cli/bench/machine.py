"""Facts about the machine that a measurement needs: names, versions, and the clock."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib import metadata
from typing import Any

__all__ = ["device_name", "sm_clock_mhz", "versions"]

_PACKAGES = (
    "cudnn-fe-core",
    "cudnn-fe-gemm",
    "cudnn-fe-grouped",
    "cudnn-fe-norm-rope",
    "torch",
    "jax",
    "triton",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "quack-kernels",
    "liger-kernel",
)
_NVML_CLOCK_SM = 1


def device_name(cuda: bool) -> str:
    """Name of the GPU in use, or of the CPU's kind."""
    if cuda:
        import torch

        return torch.cuda.get_device_name()
    import platform

    return f"CPU ({platform.machine()})"


def versions(cuda: bool) -> tuple[str, ...]:
    """Installed packages that decide the numbers, and CUDA's."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    if cuda:
        import torch

        cudnn: Any = torch.backends.cudnn
        found += [f"CUDA {torch.version.cuda}", f"cuDNN {cudnn.version()}"]
    return tuple(found)


@lru_cache(maxsize=1)
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVML and the handle of torch's current GPU, found by its bus id: NVML does not know CUDA_VISIBLE_DEVICES."""
    import torch

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        properties: Any = torch.cuda.get_device_properties()
        bus = f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    except (OSError, AttributeError):
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)):
        return None
    return library, handle


def sm_clock_mhz() -> int | None:
    """The multiprocessors' clock now, or None where it cannot be read."""
    found = _nvml()
    if found is None:
        return None
    clock = ctypes.c_uint()
    library, handle = found
    return None if library.nvmlDeviceGetClockInfo(handle, _NVML_CLOCK_SM, ctypes.byref(clock)) else clock.value
