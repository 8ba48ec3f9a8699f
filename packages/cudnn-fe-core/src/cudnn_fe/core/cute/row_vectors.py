"""Rows of 16-bit elements between global memory and registers, eight elements (four words) at a time.

Accesses are as wide as the operands' alignment allows: 16 bytes where it can be, down to single elements.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.ptx_base import assemble, copy_async, load_global, store_shared

__all__ = [
    "VECTOR",
    "copy_words_async",
    "load_floats",
    "load_vectors",
    "load_words",
    "nth_vector",
    "row_address",
    "store_floats",
    "store_global",
    "store_words",
    "wait_for_copies",
]

VECTOR = 8  # elements of two bytes: 16 bytes


def nth_vector(index: int, threads: int, run: int) -> int:
    """Where a thread's vector of this index lies behind its first, when threads take runs of vectors in turn."""
    return index // run * (threads * run) + index % run


def row_address(tensor: Any, row: Any) -> Int64:
    """Address of the first element of a row of a 2-D tensor."""
    return tensor.iterator.toint() + Int64(row) * Int64(tensor.stride[0]) * (tensor.element_type.width // 8)


def load_words(address: Int64, width: int, valid: Any) -> list[Int32]:
    """Four words from ``address``, by accesses of ``width`` (16, 8, 4 or 2) bytes; zeros unless ``valid``."""
    if width == 2:
        halves = [load_global(address + 2 * index, 2, valid)[0] for index in range(VECTOR)]
        return [low | (high << 16) for low, high in zip(halves[::2], halves[1::2], strict=True)]
    return [word for start in range(0, 16, width) for word in load_global(address + start, width, valid)]


def copy_words_async(shared: Int32, address: Int64, width: int, valid: Any) -> None:
    """Begin to copy four words to shared memory by accesses of ``width`` (16, 8, 4, 2) bytes; zeros unless ``valid``.

    Accesses of two bytes go through registers: `load_words` and a store.
    """
    if width == 2:
        store_shared(shared, load_words(address, width, valid), 16)
        return
    for start in range(0, 16, width):
        copy_async(shared + start, address + start, width, valid)


def wait_for_copies() -> None:
    """Wait until all that this thread began to copy has arrived, for this thread to read."""
    assemble("cp.async.wait_all;", [], [])


def store_global(address: Int64, words: list[Any], size: int, valid: Any, above: int | None = None) -> None:
    """Write the first ``size`` (1, 2, 4, 8 or 16) bytes of ``words`` where ``valid`` is not 0, or above a number."""
    count = max(size // 4, 1)
    names = ",".join(f"${index + 2}" for index in range(count))
    head = f"{{ .reg .pred p; setp.{'ne' if above is None else 'gt'}.s32 p, $1, {above or 0}; "
    if size < 4:
        code = f"{head}.reg .b16 h; cvt.u16.u32 h, $2; @p st.global.{'u8' if size == 1 else 'u16'} [$0], h; }}"
    elif size == 4:
        code = f"{head}@p st.global.b32 [$0], $2; }}"
    else:
        code = f"{head}@p st.global.v{count}.b32 [$0], {{{names}}}; }}"
    assemble(code, [], [Int64(address), Int32(valid), *(Int32(word) for word in words[:count])])


def store_words(address: Int64, words: list[Any], width: int, valid: Any) -> None:
    """Write four words by accesses of ``width`` (16, 8, 4 or 2) bytes where ``valid``."""
    if width == 2:
        for index, word in enumerate(words):
            store_global(address + 4 * index, [word], 2, valid)
            store_global(address + 4 * index + 2, [(word >> 16) & 0xFFFF], 2, valid)
        return
    for start in range(0, 16, width):
        store_global(address + start, words[start // 4 : (start + width) // 4], width, valid)


def load_floats(address: Int64, count: int, valid: Any, width: int = 16) -> list[Float32]:
    """``count`` fp32 values, a multiple of four, by accesses of ``width`` bytes (16, 8, 4); zeros unless ``valid``."""
    words = [word for start in range(0, 4 * count, 16) for word in load_words(address + start, width, valid)]
    return [value for word in words for value in assemble("mov.b32 $0, $1;", [Float32], [word])]


def store_floats(address: Int64, values: list[Any], valid: Any) -> None:
    """Write four fp32 values to a 16-byte aligned address where ``valid``."""
    store_global(address, [assemble("mov.b32 $0, $1;", [Int32], [Float32(value)])[0] for value in values], 16, valid)


@cute.jit
def load_vectors(
    into: cute.Tensor,
    address: Int64,
    first: Int32,
    step: cutlass.Constexpr,
    limit: Any,
    width: cutlass.Constexpr,
    run: cutlass.Constexpr = 1,
) -> None:
    """Fill a register tensor with vectors ``first``, ``first + step``, ... of a row; zeros at and past ``limit``.

    All loads are issued before anything waits for one.

    Args:
        into: int32 registers, four for each vector.
        address: The row's first element.
        first: This thread's first vector.
        step: Vectors between two of a thread's.
        limit: Vectors in the row; 0 loads nothing.
        width: Bytes of one access.
        run: Neighbouring vectors that come together; steps count such runs.
    """
    for index in cutlass.range_constexpr(cute.size(into) // 4):
        vector = first + nth_vector(index, step, run)
        words = load_words(address + Int64(vector) * 16, width, Int32(vector < limit))
        for part in cutlass.range_constexpr(4):
            into[index * 4 + part] = words[part]
