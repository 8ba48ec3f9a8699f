"""Vectors of elements between global memory and fp32 registers, at 64-bit addresses."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.ptx_base import load_global

__all__ = ["load_words", "store_vector", "widen"]


def load_words(dtype: Any, address: Int64, count: int, valid: Any) -> list[Int32]:
    """Read ``count`` elements at once; the address is aligned to their size, or to 16 bytes.

    The compiler moves an ordinary load to where its value is used, behind other loads' uses too. These stay where
    they are written, so that as many are in flight as were asked for.

    Returns:
        Words for `widen`; zeros, and nothing is read, unless ``valid``.
    """
    size = dtype.width // 8 * count
    return [word for at in range(0, size, 16) for word in load_global(address + at, min(size, 16), valid)]


def widen(dtype: Any, words: list[Int32], count: int) -> list[Float32]:
    """The first ``count`` elements of ``words`` as fp32."""
    # The other way round, one word seen as elements, all elements would be its first: its only stride is zero.
    elements = cute.make_rmem_tensor(len(words) * Int32.width // dtype.width, dtype)
    raw = cute.recast_tensor(elements, Int32)
    for index, word in enumerate(words):
        raw[index] = word
    wide = cute.make_rmem_tensor(cute.size(elements), Float32)
    wide.store(elements.load().to(Float32))
    return [wide[index] for index in range(count)]


def store_vector(dtype: Any, address: Int64, values: list[Any]) -> None:
    """Round fp32 values to ``dtype`` and store them at once; the address is aligned to their size, or to 16 bytes."""
    wide = cute.make_rmem_tensor(len(values), Float32)
    for index, value in enumerate(values):
        wide[index] = value
    alignment = min(dtype.width // 8 * len(values), 16)
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=alignment)
    cute.make_tensor(pointer, cute.make_layout(len(values))).store(wide.load().to(dtype))
