"""Memory named by addresses: read and written by references, which know no other way to an expert's own matrix."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnn_fe.core.arrays import is_jax
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import AlignmentError, BackendError
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["gather_bytes", "host_addresses", "scatter_bytes"]


def host_addresses(pointers: Any) -> list[int]:
    """The addresses, read on the host; int64, or eight bytes each.

    Raises:
        AlignmentError: An address of 0, or one that is no multiple of 16.
    """
    array = np.ascontiguousarray(pointers.cpu() if hasattr(pointers, "cpu") else pointers)
    found: list[int] = array.view(np.int64).tolist()
    for expert, address in enumerate(found):
        if address == 0 or address % 16:
            raise AlignmentError(
                f"pointer of expert {expert}",
                got=f"{address:#x}",
                wanted="a multiple of 16 bytes above 0",
                remedy="pass the address of every expert's own matrix",
            )
    return found


class _DeviceMemory:
    """Bytes at an address, as whoever reads the CUDA array interface sees them."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _memory(pointers: Any, nbytes: int) -> list[Any]:
    """For each address its bytes, as a writable array of the pointers' framework and device."""
    addresses = host_addresses(pointers)
    if getattr(pointers, "is_cuda", False):
        import torch  # pointers are its

        return [torch.as_tensor(_DeviceMemory(address, nbytes), device=pointers.device) for address in addresses]
    raw = [np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)) for address in addresses]
    if isinstance(pointers, np.ndarray):
        return raw
    import torch

    return [torch.from_numpy(array) for array in raw]


def gather_bytes(xp: Any, pointers: Any, nbytes: int) -> Any:
    """(L, nbytes) uint8: a copy of the memory behind each address.

    On a GPU the addresses are read on the host, which waits for the stream: kernels read them where they are.
    """
    if not is_jax(xp):
        return xp.stack(_memory(pointers, nbytes))
    import jax

    def read(where: Any) -> Any:
        return np.stack(_memory(np.asarray(where), nbytes))

    shape = (_count(pointers), nbytes)
    return _on_the_host(read, jax.ShapeDtypeStruct(shape, "uint8"), pointers)


def scatter_bytes(xp: Any, pointers: Any, rows: Any) -> Any:
    """Write (L, nbytes) uint8 behind the addresses; returns a float32 zero of shape (1,) that exists afterwards."""
    nbytes = rows.shape[1]
    if not is_jax(xp):
        for place, row in zip(_memory(pointers, nbytes), rows, strict=True):
            place[:] = row
        return xp.reshape(xp.astype(rows[0, :1], xp.float32) * 0, (1,))
    import jax

    def write(where: Any, values: Any) -> Any:
        for place, row in zip(_memory(np.asarray(where), nbytes), np.asarray(values), strict=True):
            place[:] = row
        return np.zeros((1,), np.float32)

    return _on_the_host(write, jax.ShapeDtypeStruct((1,), "float32"), pointers, rows)


def _count(pointers: Any) -> int:
    size = int(pointers.shape[0])
    return size // 8 if str(pointers.dtype) == "uint8" else size


def _on_the_host(function: Any, result: Any, *arrays: Any) -> Any:
    """A host function in a JAX program; lowering it for a GPU, whose memory it cannot reach, raises."""
    import jax
    from jax.experimental import io_callback

    from cudnn_fe.core.jax_refusal import refusal

    error = BackendError(
        "addresses",
        got="a JAX program for a GPU",
        wanted="a kernel that reads device addresses",
        remedy="pass dense operands, or use torch",
    )
    spec = TensorSpec(result.shape, (1,) * len(result.shape), dtype(result.dtype.name), "traced")

    def refused(*given: Any) -> Any:
        return refusal(error, (spec,))(*given)[0]

    def called(*given: Any) -> Any:
        return io_callback(function, result, *given, ordered=False)

    return jax.lax.platform_dependent(*arrays, cuda=refused, cpu=called)
