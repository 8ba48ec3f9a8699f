"""Facts about this environment, for a report of a problem: ``python -m cudnn.collect_env [--json]``.

Imports the standard library alone, so it also runs as a plain file where ``import cudnn`` fails. It reads, and never
writes or connects anywhere; a probe that fails becomes a value of the report.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import metadata, util
from pathlib import Path

__all__ = ["collect_env_info", "format_report", "main"]

Section = dict[str, str]
Report = dict[str, Section]

_PREFIXES = ("CUDNN_", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "NVTE_")
_EXACT = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_LIBRARIES = ("libcudnn", "libcublas", "libcudart", "libnvrtc", "libcuda")
_PACKAGES = re.compile(
    r"(cudnn[-_]fe.*|nvidia[-_].*|torch|triton|jax|jaxlib|jax[-_]cuda.*|numpy|ml[-_]dtypes|apache[-_]tvm[-_]ffi|"
    r"cuda[-_].*|array[-_]api[-_]compat|quack[-_]kernels|transformer[-_]engine.*|flash[-_]attn.*)",
    re.IGNORECASE,
)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL")
_CU_ERROR = "the CUDA driver answered with error {}"


def _run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return f"{command[0]} not found"
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _location(module: str) -> str:
    spec = util.find_spec(module)
    return "not importable" if spec is None else str(spec.origin or list(spec.submodule_search_locations or ()))


def _frontend() -> Section:
    here = Path(__file__).parent / "_version.py"
    written = re.search(r'__version__ = "([^"]+)"', here.read_text()) if here.exists() else None
    version, installed = written[1] if written else "unknown", _version("cudnn-fe")
    mismatch = "" if version == installed else f" (the file on the path says {version})"
    return {
        "version": version,
        "pip version": installed + mismatch,
        "cudnn": _location("cudnn"),
        "cudnn_fe.core": _location("cudnn_fe.core") if util.find_spec("cudnn_fe") else "not importable",
        "vendor's wheel": _version("nvidia-cudnn-frontend"),
        "backend version": "none: no operation here calls libcudnn",
        "backend search": "not needed",
    }


def _platform() -> Section:
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpu cores": str(os.cpu_count()),
    }


def _gpus() -> Section:
    """Every GPU in CUDA's order, from the driver library itself."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return {"driver": "no CUDA driver library", "count": "0"}
    status = driver.cuInit(0)
    if status != 0:
        return {"driver": _CU_ERROR.format(status), "count": "0"}
    value, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    driver.cuDriverGetVersion(ctypes.byref(value))
    found = {"driver": f"CUDA {value.value // 1000}.{value.value % 1000 // 10}"}
    found["driver release"] = _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    driver.cuDeviceGetCount(ctypes.byref(value))
    found["count"] = str(value.value)
    for index in range(value.value):
        handle, major, minor, cores = (ctypes.c_int() for _ in range(4))
        driver.cuDeviceGet(ctypes.byref(handle), index)
        for attribute, into in ((75, major), (76, minor), (16, cores)):
            driver.cuDeviceGetAttribute(ctypes.byref(into), attribute, handle)
        driver.cuDeviceGetName(name, 256, handle)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
        found[f"cuda:{index}"] = (
            f"{name.value.decode()}, SM {major.value}.{minor.value}, {cores.value} multiprocessors, "
            f"{memory.value / 2**30:.0f} GiB"
        )
    return found


def _toolkit() -> Section:
    return {
        "nvcc": _run("nvcc", "--version").split("\n")[-1],
        "CUDA_HOME": os.environ.get("CUDA_HOME", os.environ.get("CUDA_PATH", "not set")),
    }


def _torch() -> Section:
    """Read from torch's files: importing it would take seconds and start CUDA."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {"version": "not installed"}
    text = (Path(spec.origin).parent / "version.py").read_text()
    found = {"version": _version("torch"), "path": spec.origin}
    for key in ("cuda", "git_version"):
        match = re.search(rf"^{key}\b[^=]*= '?([^'\n]+)'?$", text, re.MULTILINE)
        found[key] = match[1] if match else "unknown"
    found["cuDNN"] = "torch's own copy; nothing here loads another"
    return found


def _libraries() -> Section:
    """GPU libraries that this process has loaded, and those on disk in Python packages."""
    maps = Path("/proc/self/maps")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines()} if maps.exists() else set()
    roots = {Path(path) / "nvidia" for path in sys.path if path and (Path(path) / "nvidia").is_dir()}
    disk = {str(path) for root in roots for path in root.glob("*/lib/*.so*")}
    found = {}
    for library in _LIBRARIES:
        exact = re.compile(rf"{library}\.so[.\d]*$")
        here, there = ([p for p in sorted(paths) if exact.search(Path(p).name)] for paths in (loaded, disk))
        versions = {Path(p).name for p in (*here, *there)}
        note = " (several versions)" if len(versions) > 1 else ""
        found[library] = f"loaded: {_listed(here)}; on disk: {_listed(there)}{note}"
    return found


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(paths) or "none"


def _packages() -> Section:
    found: Section = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name is None or not _PACKAGES.fullmatch(name):
            continue
        pins = [text for text in distribution.requires or () if text.startswith("nvidia-cudnn")]
        text = distribution.version + (f" (wants {'; '.join(pins)})" if pins else "")
        key = re.sub("[-_.]+", "-", name).lower()
        found[key] = text if found.get(key, text) == text else f"{found[key]} AND {text}: installed twice"
    return dict(sorted(found.items()))


def _environment() -> Section:
    """Variables that change how GPU software behaves; what may be a credential is named and not shown."""
    names = [name for name in sorted(os.environ) if name.startswith(_PREFIXES) or name in _EXACT]
    return {name: "(hidden)" if _SECRET.search(name) else os.environ[name] for name in names}


def _topology() -> Section:
    return {"nvidia-smi topo -m": _run("nvidia-smi", "topo", "-m")}


_SECTIONS: dict[str, Callable[[], Section]] = {
    "frontend": _frontend,
    "platform": _platform,
    "gpu": _gpus,
    "cuda toolkit": _toolkit,
    "pytorch": _torch,
    "libraries": _libraries,
    "packages": _packages,
    "environment": _environment,
    "topology": _topology,
}


def collect_env_info() -> Report:
    """Everything the report holds, section by section; a section that cannot be read holds its error."""
    report: Report = {}
    for name, probe in _SECTIONS.items():
        try:
            report[name] = probe()
        except Exception as error:
            report[name] = {"error": f"{type(error).__name__}: {error}"}
    return report


def format_report(report: Report) -> str:
    """The report as text."""
    lines = []
    for name, section in report.items():
        width = max(map(len, section), default=0)
        lines += [name, *(f"  {key:{width}}  {value}" for key, value in section.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Print the report; ``--json`` prints it for programs."""
    parser = argparse.ArgumentParser(prog="python -m cudnn.collect_env", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    report = collect_env_info()
    as_json = parser.parse_args(arguments).json
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if as_json else format_report(report))


if __name__ == "__main__":
    main()
