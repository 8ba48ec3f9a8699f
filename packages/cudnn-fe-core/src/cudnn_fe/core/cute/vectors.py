"""Vectors of elements between global memory and fp32 registers, at 64-bit addresses."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int64, cute

__all__ = ["load_vector", "store_vector"]


def _at(dtype: Any, address: Int64, count: int) -> Any:
    alignment = min(dtype.width // 8 * count, 16)
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=alignment)
    return cute.make_tensor(pointer, cute.make_layout(count))


def load_vector(dtype: Any, address: Int64, count: int) -> list[Float32]:
    """Read ``count`` elements as fp32; the address is aligned to their size, or to 16 bytes."""
    wide = cute.make_rmem_tensor(count, Float32)
    wide.store(_at(dtype, address, count).load().to(Float32))
    return [wide[index] for index in range(count)]


def store_vector(dtype: Any, address: Int64, values: list[Any]) -> None:
    """Round fp32 values to ``dtype`` and store them; the address is aligned to their size, or to 16 bytes."""
    wide = cute.make_rmem_tensor(len(values), Float32)
    for index, value in enumerate(values):
        wide[index] = value
    _at(dtype, address, len(values)).store(wide.load().to(dtype))
