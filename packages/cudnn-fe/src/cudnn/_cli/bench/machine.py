"""Facts about the machine that a measurement needs: names, versions, the clock, and the best rate it reaches."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib import metadata
from statistics import median
from time import perf_counter

from cudnn_fe.core.dtypes import dtype

__all__ = ["device_name", "gemm_ceiling", "sm_clock_mhz", "versions"]

_PACKAGES = (
    "cudnn-fe-core",
    "cudnn-fe-gemm",
    "torch",
    "triton",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "quack-kernels",
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

        found += [f"CUDA {torch.version.cuda}", f"cuDNN {torch.backends.cudnn.version()}"]
    return tuple(found)


@lru_cache(maxsize=1)
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVML and the handle of torch's current GPU, found by its bus id: NVML does not know CUDA_VISIBLE_DEVICES."""
    import torch

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        properties = torch.cuda.get_device_properties()
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


def gemm_ceiling(kind: str, cuda: bool) -> tuple[float, str]:
    """TFLOP/s of the framework's own GEMM at a size that suits it best, and what was run."""
    import torch

    size = 8192 if cuda else 1024
    where = "cuda" if cuda else "cpu"
    element = getattr(torch, dtype(kind).torch)
    a, b = (torch.randn(size, size, device=where).to(element) for _ in range(2))
    seconds = []
    for _ in range(24):
        if cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            a @ b.T
            end.record()
            torch.cuda.synchronize()
            seconds.append(begin.elapsed_time(end) * 1e-3)
        else:
            began = perf_counter()
            a @ b.T
            seconds.append(perf_counter() - began)
    return 2 * size**3 / median(seconds[4:]) / 1e12, f"torch's {kind} GEMM of {size} cubed"
