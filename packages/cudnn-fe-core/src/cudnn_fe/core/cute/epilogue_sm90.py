"""From accumulators to memory: an epilogue function on fragments, conversion, shared memory, TMA store.

An epilogue is a plain function ``(block, where, arguments) -> fragments``. `block` is one thread's float32 part of a
64-row block of the accumulator, some columns wide; every output gets one float32 fragment, whose columns lie as the
block's do. `arguments` are what the op launches with, here alpha.
The columns of a block that one thread holds are the same 2 of every 8, so columns c and c + 32 meet in one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warp

from cudnn_fe.core.cute.activations import swiglu
from cudnn_fe.core.cute.mainloop_sm90 import make_tiled_mma, swizzled_atom
from cudnn_fe.core.cute.numerics import element_type

__all__ = [
    "BlockPlace",
    "Epilogue",
    "Output",
    "ReadingEpilogue",
    "fragment_column",
    "fragment_row",
    "identity_epilogue",
    "load_fragment",
    "store_fragment",
    "swiglu_epilogue",
]


class BlockPlace(NamedTuple):
    """Where a 64-row block of the accumulator lies.

    Attributes:
        row: Its first row in the whole tensor.
        column: Its first column of N.
        begin: Where the rows of its batch or group begin.
        end: Where they end; what is computed for rows from there on is not stored.
        batch: Batch or group.
        thread: This thread of the warpgroup.
    """

    row: Int32
    column: Int32
    begin: Int32
    end: Int32
    batch: Int32
    thread: Int32


@dataclass(frozen=True)
class Output:
    """One stored tensor.

    Attributes:
        dtype: Element type's name.
        major: ``"n"`` or ``"m"``.
        columns: Its columns per block of the accumulator.
    """

    dtype: str
    major: str
    columns: int

    @property
    def element(self) -> Any:
        """The DSL's element type."""
        return element_type(self.dtype)

    @property
    def bytes(self) -> int:
        """Shared memory for one 64-row block."""
        return 64 * self.columns * int(self.element.width) // 8

    def smem_layout(self, slots: int) -> Any:
        """Layout (64, columns, slots), swizzled so that neither the fragment's stores nor TMA's reads collide."""
        along_m = self.major == "m"
        atom = swizzled_atom(self.element, 64 if along_m else self.columns, along_m)
        return cute.tile_to_shape(atom, (64, self.columns, slots), order=(1, 0, 2) if along_m else (0, 1, 2))

    def fragment_copy(self, matrix_op: Any) -> cute.TiledCopy:
        """The copy between a warpgroup's fragment, in accumulator layout, and shared memory; 16 bits by `matrix_op`."""
        along_m = self.major == "m"
        if self.element.width == 16:
            atom = cute.make_copy_atom(matrix_op(along_m, 4), self.element)
        else:
            pair = self.element.width * (1 if along_m else 2)
            atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.element, num_bits_per_copy=pair)
        layout_mma = make_tiled_mma(
            element_type("bfloat16"), element_type("bfloat16"), ("k", "k"), self.columns, (1, 1)
        )
        return cute.make_tiled_copy_C(atom, layout_mma)


class ReadingEpilogue(ABC):
    """An epilogue that reads a tensor that lies as an output would; TMA brings its blocks ahead of their use.

    Attributes:
        source: That tensor's blocks.
    """

    source: Output

    @abstractmethod
    def __call__(
        self, block: cute.Tensor, where: BlockPlace, arguments: Any, read: cute.Tensor
    ) -> tuple[cute.Tensor, ...]:
        """The outputs' fragments; `read` is the thread's float32 part of the source's block, laid as an output's."""


Epilogue = Callable[..., tuple[cute.Tensor, ...]]


def identity_epilogue(block: cute.Tensor, where: BlockPlace, alpha: Float32) -> tuple[cute.Tensor, ...]:
    """``alpha * acc``."""
    scaled = cute.make_rmem_tensor(block.shape, Float32)
    for i in range(cute.size(block)):
        scaled[i] = block[i] * alpha
    return (scaled,)


def swiglu_epilogue(block: cute.Tensor, where: BlockPlace, alpha: Float32) -> tuple[cute.Tensor, ...]:
    """``alpha * acc`` and, from its 32 value and 32 gate columns, SwiGLU."""
    (scaled,) = identity_epilogue(block, where, alpha)
    half = cute.size(block) // 2
    activated = cute.make_rmem_tensor((half,), Float32)
    for i in range(half):
        activated[i] = swiglu(scaled[i], scaled[half + i])
    return scaled, activated


def fragment_row(thread: Int32) -> Int32:
    """The first of the two rows of a 64-row block that a thread's fragment covers; the other is 8 further on."""
    return thread // 32 * 16 + thread % 32 // 4


def fragment_column(thread: Int32, index: int) -> Int32:
    """The column of value `index` of a thread's fragment; its row is the second one where ``index // 2`` is odd."""
    return 2 * (thread % 4) + (8 * (index // 4) + index % 2)


def store_fragment(output: Output, fragment: cute.Tensor, smem: cute.Tensor, thread: Int32) -> None:
    """Converts one thread's fragment and writes it to its place in `smem` (64, columns)."""
    copy = output.fragment_copy(warp.StMatrix8x8x16bOp)
    target = copy.get_slice(thread).partition_D(smem)
    converted = cute.make_rmem_tensor(((2, 2, output.columns // 8), 1, 1), output.element)
    flat = cute.make_tensor(converted.iterator, cute.make_layout(cute.size(converted)))
    values = cute.make_tensor(fragment.iterator, cute.make_layout(cute.size(converted)))
    flat.store(values.load().to(output.element))
    cute.copy(copy, copy.retile(converted), target)


def load_fragment(output: Output, smem: cute.Tensor, thread: Int32) -> cute.Tensor:
    """One thread's float32 fragment of a block in `smem` (64, columns): what `store_fragment` would have stored."""
    copy = output.fragment_copy(warp.LdMatrix8x8x16bOp)
    stored = cute.make_rmem_tensor(((2, 2, output.columns // 8), 1, 1), output.element)
    cute.copy(copy, copy.get_slice(thread).partition_S(smem), copy.retile(stored))
    flat = cute.make_layout(cute.size(stored))
    fragment = cute.make_rmem_tensor(flat, Float32)
    fragment.store(cute.make_tensor(stored.iterator, flat).load().to(Float32))
    return fragment
