"""Runs this project's kernels without a GPU: compiled host code for real, and what it launches by the PTX machine.

The host function is linked against launch functions of our own, which hand each launch to Python. Operands are torch
tensors on a CPU, whose memory stands for the GPU's.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cudnn_fe.core.choose import Choice, choose
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.toolchain import load_runtime_libraries, missing_toolchain
from cudnn_fe_testkit.ptx import Kernel, parse
from cudnn_fe_testkit.ptx_machine import Machine
from cudnn_fe_testkit.ptx_memory import Memory

__all__ = ["H200", "interpreted", "missing_interpreter"]

H200 = Device("cuda:0", (9, 0), 132, "H200")
_LINKER = next((path for tool in ("cc", "gcc", "clang") if (path := shutil.which(tool))), None)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)),
)
# What compiled host code calls, in place of CUDA's: one device, kernels that are their names, launches for Python.
_DRIVER = """
#include <stddef.h>
#include <string.h>
typedef struct { int name, unused; unsigned value[16]; } Attribute;
typedef struct {
  unsigned grid[3], block[3]; size_t dynamic; void *stream; Attribute *attributes; unsigned count;
} Config;
typedef int (*Launch)(const char *, const unsigned *, unsigned, unsigned, void **);
static Launch launch;
void interpreted_set(Launch given) { launch = given; }
int cuda_dialect_init_library_once(void **library, int (*read)(void **), int (*load)(void **, int), void *report)
{ int status = *library ? 0 : read(library); return status ? status : load(library, 0); }
int cuda_dialect_unload_library_once(void **library) { return 0; }
int _cudaGetDevice(int *device) { *device = 0; return 0; }
int _cudaSetDevice(int device) { return 0; }
int _cudaDeviceGetAttribute(int *value, int attribute, int device) { *value = 1 << 20; return 0; }
int _cudaFuncSetAttribute(const void *kernel, int attribute, int value) { return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) { return 0; }
int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { *value = 0; return 0; }
int _cudaLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f)
{ *library = (void *)1; return 0; }
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) { *kernel = strdup(name); return 0; }
int _cudaLaunchKernelEx(const Config *config, void *kernel, void **parameters)
{ unsigned cluster = 1;
  for (unsigned i = 0; i < config->count; i++)
    if (config->attributes[i].name == 4) cluster = config->attributes[i].value[0];
  return launch(kernel, config->grid, (unsigned)config->dynamic, cluster, parameters); }
"""


def missing_interpreter() -> str | None:
    """Why kernels cannot be interpreted here, or None."""
    return "no linker is installed" if _LINKER is None else missing_toolchain()


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _Kind(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("kind", _Kind),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# DLPack's codes: signed and unsigned integers, floats, brain floats, truth values, and the narrow floats.
_KINDS = {
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.bool: (6, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e8m0fnu: (14, 8),
}
_CUDA = 2
_capsule = ctypes.PyDLL(None).PyCapsule_New  # a handle of our own: others declare ctypes.pythonapi's as they please
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Pretended:
    """A tensor on a CPU that says it is on a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        bits = _KINDS.get(tensor.dtype)
        lanes = 1
        if bits is None:
            bits, lanes = (17, 4), 2  # pairs of E2M1
        self._kept = (ctypes.c_int64 * tensor.ndim)(*tensor.shape), (ctypes.c_int64 * tensor.ndim)(*tensor.stride())
        shape, strides = self._kept
        kind = _Kind(*bits, lanes)
        self._managed = _Managed(
            _Tensor(tensor.data_ptr(), _Device(_CUDA, 0), tensor.ndim, kind, shape, strides, 0), None, None
        )

    def __dlpack__(self, **_: Any) -> Any:
        return _capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0


class _Function:
    """A compiled kernel's host function, whose launches are interpreted."""

    def __init__(self, module: str, spec: Hashable, arch: str) -> None:
        import tvm_ffi

        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        compiled = compile_now(module, spec, arch, f"--keep-ptx --dump-dir={folder}")
        (text,) = folder.glob("*.ptx")
        self.kernels = parse(text.read_text())
        compiled.export_to_c(str(folder / "host.o"), function_name="host")
        (folder / "driver.c").write_text(_DRIVER)
        library = folder / "host.so"
        files = (str(folder / "driver.c"), str(folder / "host.o"))
        subprocess.run([str(_LINKER), "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", str(library), *files], check=True)
        load_runtime_libraries()
        self._launch = _LAUNCH(self._launched)
        ctypes.CDLL(str(library)).interpreted_set(self._launch)
        self._host = tvm_ffi.load_module(str(library)).get_function("host")
        self._error: BaseException | None = None
        self._memory = Memory()

    def __call__(self, *arguments: Any) -> None:
        import tvm_ffi

        self._error, self._memory = None, Memory()
        given, pretended = [], []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                self._memory.add(argument.data_ptr(), _bytes_of(argument))
                pretended.append(_Pretended(argument))
                given.append(tvm_ffi.from_dlpack(pretended[-1]))
            else:
                given.append(argument)
        try:
            self._host(*given)
        finally:
            if self._error is not None:
                raise self._error

    def _launched(self, name: bytes, extents: Any, dynamic: int, cluster: int, parameters: Any) -> int:
        try:
            kernel: Kernel = self.kernels[name.decode()]
            values = [ctypes.string_at(parameters[i], size) for i, size in enumerate(kernel.parameters)]
            grid, block = tuple(extents[0:3]), tuple(extents[3:6])
            Machine(kernel, grid, block, values, self._memory, dynamic, cluster).run()
        except BaseException as error:  # C code lies between: it is raised behind it
            self._error = error
            return 1
        return 0


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """All that lies between a tensor's first element and its last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
    count = (last + 1) * tensor.element_size()
    raw: Any = (ctypes.c_uint8 * count).from_address(tensor.data_ptr()) if count else b""
    return np.frombuffer(raw, np.uint8)


@cache
def _function(module: str, spec: Hashable, arch: str) -> Callable[..., None]:
    return _Function(module, spec, arch)


@contextmanager
def interpreted(backend: str = "portable") -> Iterator[None]:
    """Calls on torch tensors of a CPU run the kernels of ``backend``, interpreted, as an H200 would choose them."""
    import cudnn_fe.core.torch as adapter

    def choose_there(op: Op, problem: Problem, wanted: str | None = None) -> Choice:
        return choose(op, problem, wanted or backend, on=H200)

    def compiled(module: str, spec: Hashable, arch: str) -> Callable[..., None]:
        return _function(module, spec, "sm_90a")

    changed = {"choose": choose_there, "compiled": compiled, "current_device": lambda: -1}
    before = {name: getattr(adapter, name) for name in changed}
    adapter.torch_op.cache_clear()
    for name, value in changed.items():
        setattr(adapter, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(adapter, name, value)
        adapter.torch_op.cache_clear()
