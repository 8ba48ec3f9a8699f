"""Operand tiles from global to shared memory by plain means: cp.async, or loads through registers.

A tile is 128 rows (of M or N) by 64 bytes of K as the MMA reads them. So that neither copies nor fragment reads meet
bank conflicts, the 16-byte chunks of a K-major row are permuted (`swizzled`), and MN-major lines are padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64

from cudnn_fe.core.cute.fp8_widen import E4M3_SCALE, widen_fp8
from cudnn_fe.core.cute.matrix_part import MatrixPart
from cudnn_fe.core.cute.ptx_base import copy_async, load_global, store_shared
from cudnn_fe.core.dtypes import DType

__all__ = ["THREADS", "TILE_ROWS", "OperandLoader", "OperandPlan", "swizzled"]

THREADS = 128
TILE_ROWS = 128
_K_BYTES = 64


@dataclass(frozen=True)
class OperandPlan:
    """What the compiled code knows of an operand.

    Attributes:
        dtype: Element type in global memory.
        major: ``"k"`` or ``"mn"``: the contiguous dim.
        alignment: Bytes, a power of two, that divide the base address, every other stride and the contiguous extent.
    """

    dtype: DType
    major: str
    alignment: int

    @property
    def kind(self) -> str:
        """The MMA's operand type."""
        return {"float32": "tf32", "bfloat16": "bf16"}.get(self.dtype.name, "f16")

    @property
    def scale(self) -> float:
        """What the stored value is a multiple of: 1 but for E4M3."""
        return E4M3_SCALE if self.dtype.name == "float8_e4m3fn" else 1.0

    @property
    def itemsize(self) -> int:
        """Bytes of an element in shared memory."""
        return 4 if self.kind == "tf32" else 2

    @property
    def depth(self) -> int:
        """Elements of K in a tile."""
        return _K_BYTES // self.itemsize

    @property
    def vector(self) -> int:
        """Elements of one global access."""
        return max(min(self.alignment, 16) // self.dtype.itemsize, 1)

    @property
    def asynchronous(self) -> bool:
        """Whether cp.async serves: it neither converts nor moves fewer than four bytes."""
        return not self.dtype.is_fp8 and self.vector * self.dtype.itemsize >= 4

    @property
    def lines(self) -> int:
        """Lines of a tile in shared memory."""
        return TILE_ROWS if self.major == "k" else self.depth

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.depth if self.major == "k" else TILE_ROWS

    @property
    def pitch(self) -> int:
        """Bytes from line to line. MN-major TF32 is read word by word, which wants 32 bytes of padding."""
        if self.major == "k":
            return _K_BYTES
        return self.line * self.itemsize + (32 if self.kind == "tf32" else 16)

    @property
    def tile_bytes(self) -> int:
        """Shared memory of one tile."""
        return self.lines * self.pitch


def swizzled(byte: Any, row: Any) -> Any:
    """Where byte ``byte`` of K-major row ``row`` lies in it: any eight rows' equal chunks fall on all banks."""
    return byte ^ (((row >> 1) & 3) << 4)


class OperandLoader:
    """One thread's share of the copies of one operand's tiles; lives while a kernel is traced.

    Args:
        plan: The operand's static part.
        part: The operand from the tile's first row on; its columns count K.
        thread: Index of the thread in the block.
    """

    def __init__(self, plan: OperandPlan, part: MatrixPart, thread: Int32) -> None:
        self.plan = plan
        size = plan.dtype.itemsize
        row_stride, k_stride = part.row_stride, part.column_stride
        per_line = plan.line // plan.vector
        self._first_line = thread // per_line
        self._inner = (thread % per_line) * plan.vector
        self._line_step = THREADS // per_line
        self.copies = plan.lines // self._line_step
        self._depth = part.columns
        if plan.major == "k":
            line_stride, self._tile_step = row_stride, Int64(plan.depth * size)
            self._rows_left = part.rows - self._first_line
        else:
            line_stride, self._tile_step = k_stride, k_stride * plan.depth
            self._row_valid = self._inner < part.rows
        self._base = part.address + Int64(self._first_line) * line_stride + Int64(self._inner) * size
        self._copy_step = line_stride * self._line_step
        # The swizzle repeats every eight lines.
        self._period = max(8 // self._line_step, 1)
        self._shared = [self._offset(self._first_line + copy * self._line_step) for copy in range(self._period)]

    def begin(self, tile: Int32, shared: Int32, copies: range) -> list[list[Int32]]:
        """Start some of this thread's copies of a tile.

        Args:
            tile: Index of the tile along K; tiles past the end are zeros.
            shared: Shared-memory address of the tile.
            copies: Which of `copies` to start.

        Returns:
            Words in flight, for `finish`.
        """
        plan, size = self.plan, self.plan.vector * self.plan.dtype.itemsize
        address = self._base + Int64(tile) * self._tile_step
        depth_left = self._depth - tile * plan.depth
        words = []
        for copy in copies:
            line = copy * self._line_step
            if plan.major == "k":
                valid = Int32(line < self._rows_left) & Int32(self._inner < depth_left)
            else:
                valid = Int32(self._row_valid) & Int32(self._first_line + line < depth_left)
            source = address + self._copy_step * copy
            if plan.asynchronous:
                copy_async(self._place(shared, copy), source, size, valid)
            else:
                words.append(load_global(source, size, valid))
        return words

    def finish(self, words: list[list[Int32]], shared: Int32, copies: range) -> None:
        """Write to shared memory what `begin` left in registers."""
        plan = self.plan
        for copy, loaded in zip(copies, words, strict=False):
            stored = loaded
            if plan.dtype.is_fp8:
                stored = [half for word in loaded for half in widen_fp8(word, plan.dtype.name)]
                stored = stored[: max(plan.vector // 2, 1)]
            target = self._place(shared, copy)
            for start in range(0, len(stored), 4):
                # A vector of two chunks starts at an even one: its other chunk differs in one bit of the address.
                place = target ^ (start * 4) if plan.major == "k" else target + start * 4
                store_shared(place, stored[start : start + 4], plan.vector * plan.itemsize)

    def _offset(self, line: Any) -> Any:
        byte = self._inner * self.plan.itemsize
        return line * self.plan.pitch + (swizzled(byte, line) if self.plan.major == "k" else byte)

    def _place(self, shared: Int32, copy: int) -> Int32:
        turn, rest = divmod(copy, self._period)
        return shared + self._shared[rest] + turn * self._period * self._line_step * self.plan.pitch
