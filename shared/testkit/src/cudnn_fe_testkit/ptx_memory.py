"""Memory of the PTX machine: the bytes of arrays at their own addresses, or blocks of shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Memory"]

Array = np.ndarray[Any, Any]


class Memory:
    """Ranges of bytes by address, and nothing between them."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, Array]] = []
        self._stride = 0

    @classmethod
    def blank(cls, blocks: int, size: int) -> Memory:
        """Shared memory of so many blocks, full of ones: its contents mean nothing at first."""
        made = cls()
        made._stride = -(-max(size, 1) // 1024) * 1024
        made.add(0, np.full(blocks * made._stride, 0xFF, np.uint8))
        return made

    def add(self, address: int, data: Array) -> None:
        """Bytes (N,) at an address; writes change them."""
        self._ranges.append((address, data))
        self._ranges.sort(key=lambda row: row[0])

    def of_block(self, block: Array, address: Array) -> Array:
        """Where a block's own address lies."""
        return block * self._stride + address

    def access(self, address: Array, size: int, count: int, values: list[Array] | None = None) -> list[Array]:
        """``count`` neighbouring words of ``size`` bytes each: loaded, or stored where there are values.

        Raises:
            IndexError: An address that is no array's, or not aligned.
        """
        if (address % (size * count)).any():
            raise IndexError(f"misaligned access of {count} x {size} bytes")
        found = [np.zeros(len(address), f"u{size}") for _ in range(count)]
        left = np.ones(len(address), bool)
        for start, data in self._ranges:
            here = left & (address >= start) & (address + size * count <= start + len(data))
            if not here.any():
                continue
            left &= ~here
            first = address[here] - start
            for index in range(count):
                place = first[:, None] + (size * index + np.arange(size))
                if values is None:
                    found[index][here] = data[place].view(f"u{size}")[:, 0]
                else:
                    data[place] = np.ascontiguousarray(values[index][here]).view(np.uint8).reshape(-1, size)
        if left.any():
            word = "write" if values is not None else "read"
            raise IndexError(f"a {word} of {count} x {size} bytes outside all arrays, at {int(address[left][0]):#x}")
        return found
