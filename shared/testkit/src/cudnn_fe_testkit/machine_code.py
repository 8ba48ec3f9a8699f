"""What compiled kernels tell about themselves."""

from __future__ import annotations

import struct

__all__ = ["stack_bytes"]

FRAME_SIZE = 0x1104  # the record in a cubin's .nv.info section: symbol, bytes of stack a thread


def stack_bytes(cubin: bytes) -> int:
    """The largest stack frame of a cubin's functions: where registers that do not fit would be spilled."""
    table, entry, count, names_index = struct.unpack_from("<Q", cubin, 40)[0], *struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<II4Q", cubin, table + entry * index) for index in range(count)]
    names = sections[names_index][4]
    frames: list[int] = []
    for name, _, _, _, offset, size in sections:
        text = cubin[names + name : cubin.index(b"\0", names + name)]
        place = offset
        while text == b".nv.info" and place < offset + size:
            kind, length = struct.unpack_from("<HH", cubin, place)
            if kind == FRAME_SIZE:
                frames.append(struct.unpack_from("<I", cubin, place + 8)[0])
            place += 4 + (length if kind & 0xFF == 4 else 0)
    assert frames, "the cubin tells no frame size"
    return max(frames)
