"""From a kernel and what it is specialised for to a function: memory, then disk, then the compiler, once each."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import platform
import re
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


_log = logging.getLogger(__name__)
compile_counts = CompileCounts()
_functions: dict[tuple[str, Hashable, str], Callable[..., None]] = {}
_guards: dict[tuple[str, Hashable, str], threading.Lock] = {}
_guards_lock = threading.Lock()
_compiler = threading.RLock()  # the DSL keeps its state in one process-wide object
_IMPORT = re.compile(
    r"^\s*(?:from\s+(cudnn_fe[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+(cudnn_fe[\w.]*))", re.MULTILINE
)


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
    function: Callable[..., None]
    if cache is None:
        function = compile_now(module, spec, arch)
        return function
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
    try:
        function = _load_object(path, name)
    except Exception as error:  # whatever a loader makes of a file that it cannot use
        _log.warning("compiled kernel %s does not load (%s): it is compiled anew", path.name, error)
        cache.discard(key)
        return None
    with _guards_lock:
        compile_counts.loaded += 1
    return function


def _load_object(path: Path, name: str) -> Callable[..., None]:
    if path.suffix == ".so":
        import tvm_ffi

        load_runtime_libraries()
        return tvm_ffi.load_module(str(path)).get_function(name)  # type: ignore[no-any-return]
    from cutlass.cute.runtime import load_module  # takes seconds: only where no linker is installed

    return getattr(load_module(str(path), enable_tvm_ffi=True), name)  # type: ignore[no-any-return]


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
    with _compiler:
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
    """Digest of the kernel's module and of every module of this project that it imports, directly or not."""
    digest = hashlib.sha256()
    for path in sorted(_sources(module)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(module: str) -> set[Path]:
    found: dict[str, Path | None] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = path = _source_of(name)
        for base, names, plain in _IMPORT.findall(path.read_text("utf-8")) if path else ():
            words = re.findall(r"\w+", names)
            waiting += [plain] if plain else [base, *(f"{base}.{word}" for word in words)]
    return {path for path in found.values() if path}


def _source_of(module: str) -> Path | None:
    """The module's file, found without importing its parents: a kernel's would import the DSL."""
    root, *rest = module.split(".")
    spec = importlib.util.find_spec(root)
    if spec is None or not rest:
        return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
    for place in spec.submodule_search_locations or ():
        for path in (Path(place, *rest[:-1], f"{rest[-1]}.py"), Path(place, *rest, "__init__.py")):
            if path.is_file():
                return path
    return None
