"""From a kernel and what it is specialised for to a function: memory, then disk, then the compiler, once each."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from cudnn_fe.core.object_cache import ObjectCache, object_cache
from cudnn_fe.core.toolchain import load_runtime_libraries, toolchain_versions

__all__ = ["CompileCounts", "cache_key", "compile_counts", "compile_now", "compiled", "forget_compiled"]


@dataclass
class CompileCounts:
    """How often this process compiled, and loaded from disk, since it started or last reset.

    Attributes:
        compiled: Runs of the compiler.
        loaded: Functions taken from the disk cache.
        log: One line per run of the compiler: module and specialisation.
    """

    compiled: int = 0
    loaded: int = 0
    log: list[str] = field(default_factory=list)


compile_counts = CompileCounts()
_functions: dict[tuple[str, Hashable, str], Callable[..., None]] = {}
_guards: dict[tuple[str, Hashable, str], threading.Lock] = {}
_guards_lock = threading.Lock()


def compiled(module: str, spec: Hashable, arch: str) -> Callable[..., None]:
    """The function of ``module`` for ``spec`` on ``arch``, called as ``f(*inputs, *outputs, *scalars)``.

    It launches on the framework's current stream of the operands' device. Threads that ask at once wait for one
    compilation; other processes wait on the entry's lock and load what it leaves.
    """
    key = (module, spec, arch)
    found = _functions.get(key)
    if found is not None:
        return found
    with _guards_lock:
        guard = _guards.setdefault(key, threading.Lock())
    with guard:
        if key not in _functions:
            _functions[key] = _load_or_compile(module, spec, arch)
        return _functions[key]


def forget_compiled() -> None:
    """Drop the functions in memory, so that the next call goes to the disk cache."""
    _functions.clear()


def _load_or_compile(module: str, spec: Hashable, arch: str) -> Callable[..., None]:
    cache = object_cache()
    if cache is None:
        return compile_now(module, spec, arch)
    key = cache_key(module, spec, arch)
    name = f"k{key[:24]}"
    found = _load(cache, key, name)
    if found is not None:
        return found
    with cache.lock(key):
        found = _load(cache, key, name)
        if found is not None:
            return found
        function = compile_now(module, spec, arch)
        labels = {"module": module, "spec": repr(spec), "arch": arch, **dict(toolchain_versions())}
        cache.store(key, lambda folder: _write_object(function, folder, name), labels)
        return function


def _load(cache: ObjectCache, key: str, name: str) -> Callable[..., None] | None:
    path = cache.find(key)
    if path is None:
        return None
    if path.suffix == ".so":
        import tvm_ffi

        load_runtime_libraries()
        function = tvm_ffi.load_module(str(path)).get_function(name)
    else:
        from cutlass.cute.runtime import load_module  # takes seconds: only where no linker is installed

        function = getattr(load_module(str(path), enable_tvm_ffi=True), name)
    compile_counts.loaded += 1
    return function  # type: ignore[no-any-return]


def compile_now(module: str, spec: Hashable, arch: str, options: str = "") -> Any:
    """Run the compiler, whatever the caches hold; no GPU is needed.

    Args:
        module: A kernel's module.
        spec: What it is specialised for.
        arch: Target, e.g. ``"sm_90a"``.
        options: More compiler options, e.g. to keep the PTX.
    """
    import cutlass.cute as cute  # takes seconds
    from cutlass.cute.runtime import make_fake_stream

    kernel = import_module(module)
    compile_counts.compiled += 1
    compile_counts.log.append(f"{module} {spec!r} {arch}")
    return cute.compile(
        kernel.launcher(spec),
        make_fake_stream(use_tvm_ffi_env_stream=True),
        *kernel.fake_arguments(spec),
        options=f"--enable-tvm-ffi --gpu-arch {arch} {options}",
    )


def _write_object(function: Any, folder: Path, name: str) -> Path:
    """Export as an object and, where a linker is installed, as a library, which loads without importing the DSL."""
    plain = folder / f"{name}.o"
    function.export_to_c(str(plain), function_name=name)
    linker = next((path for tool in ("cc", "gcc", "clang") if (path := shutil.which(tool))), None)
    if linker is not None:
        shared = plain.with_suffix(".so")
        done = subprocess.run([linker, "-shared", "-o", str(shared), str(plain)], capture_output=True, check=False)
        if done.returncode == 0:
            return shared
    return plain


def cache_key(module: str, spec: Hashable, arch: str) -> str:
    """Digest of all that compiled code depends on: sources, specialisation, toolchain, architecture, host."""
    parts = (_source_digest(module), module, repr(spec), arch, repr(toolchain_versions()), platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=256)
def _source_digest(module: str) -> str:
    """Digest of the kernel's own folder, of the one above it, which its family shares, and of core's building blocks."""
    core = Path(__file__).parent
    spec = importlib.util.find_spec(module)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    own = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.py"))] if folder else []
    shared = [core / "gemm_spec.py", *sorted((core / "cute").rglob("*.py"))]
    digest = hashlib.sha256()
    for path in (*own, *shared):
        if path.exists():
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
