"""The kernel compiler and its runtime libraries: whether they are here, which versions, without importing them."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import lru_cache
from pathlib import Path

__all__ = ["DSL_FLOOR", "load_runtime_libraries", "missing_toolchain", "toolchain_versions"]

DSL_FLOOR = "4.8"
_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi")


@lru_cache(maxsize=1)
def toolchain_versions() -> tuple[tuple[str, str], ...]:
    """Installed versions of the packages that decide what compiled code looks like; absent ones are ``"none"``.

    Where the packages lie on the path without metadata, as on a machine set up by hand, the versions read
    ``"unknown"``.
    """
    from importlib import metadata  # takes 20 ms: not needed on a CPU

    modules = {"nvidia-cutlass-dsl": "cutlass", "apache-tvm-ffi": "tvm_ffi"}
    found = []
    for package in _PACKAGES:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "unknown" if importlib.util.find_spec(modules[package]) else "none"
        found.append((package, version))
    return tuple(found)


@lru_cache(maxsize=1)
def missing_toolchain() -> str | None:
    """Why kernels can be neither compiled nor loaded here, or None."""
    from packaging.version import Version  # not needed on the warm path

    for package, version in toolchain_versions():
        if version == "none":
            return f"{package} is not installed (pip install {package})"
        if (
            package == _PACKAGES[0]
            and version != "unknown"
            and Version(Version(version).base_version) < Version(DSL_FLOOR)
        ):
            return f"{package} {version} is older than {DSL_FLOOR} (pip install -U {package})"
    return None


_handles: list[ctypes.CDLL] = []


def load_runtime_libraries() -> None:
    """Make the symbols that compiled kernels use visible to the dynamic linker, without importing the DSL.

    Raises:
        OSError: A library is missing.
    """
    if _handles:
        return
    import tvm_ffi  # light: it imports no framework

    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    runtimes = [
        path for root in roots for cuda in ("cu13", "cu12") for path in root.glob(f"{cuda}/lib/libcute_dsl_runtime.so")
    ]
    if not runtimes:
        raise OSError("libcute_dsl_runtime.so was not found beside nvidia_cutlass_dsl")
    for path in (Path(tvm_ffi.libinfo.find_libtvm_ffi()), runtimes[0]):
        _handles.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
