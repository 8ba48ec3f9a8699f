"""What the convolution's kernels share: addresses, vectors, the activation, and where a token stands in its sequence.

Sums are float32, float64 for float64 ("wide"). Vectors lie along channels or along time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import cutlass
from cutlass import Float32, Float64, Int32, Int64, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.core.cute.activations import sigmoid
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.cute.ptx_base import assemble

__all__ = [
    "THREADS",
    "Cursor",
    "Typed",
    "View",
    "activated",
    "advance",
    "at",
    "ceil_div",
    "check_offsets",
    "column",
    "fake",
    "fill",
    "put",
    "raw",
    "read",
    "read_states",
    "seek",
    "sequence_view",
    "slope",
    "states_view",
    "view",
    "wide_type",
    "widen",
    "write",
    "zeros",
]

THREADS = 128


class Typed(Protocol):
    """A spec that names x's element type."""

    @property
    def x_dtype(self) -> str:
        """Element type of x."""


def wide_type(x_dtype: str) -> Any:
    """The type that sums are kept in."""
    return Float64 if x_dtype == "float64" else Float32


def ceil_div(dividend: Any, divisor: Any) -> Any:
    """The quotient of two positive values, rounded up."""
    return (dividend + divisor - 1) // divisor


class View:
    """A tensor by address: byte strides of its first, middle and last index.

    Attributes:
        base: Address of the first element.
        strides: Bytes between neighbours along each index.
        dtype: Element type.
    """

    def __init__(self, base: Any, strides: tuple[Any, ...], dtype: Any) -> None:
        self.base, self.strides, self.dtype = base, strides, dtype


def at(view: View, first: Any, middle: Any, last: Any) -> Any:
    """Address of one element."""
    # A function: the compiler takes an object whose method is called in a branch for one that the branch changes.
    steps = zip((first, middle, last), view.strides, strict=True)
    return view.base + sum((Int64(index) * step for index, step in steps), Int64(0))


def view(tensor: Any, order: Sequence[int]) -> View:
    """A rank-3 tensor with its dims in the given order."""
    size = tensor.element_type.width // 8
    strides = tuple(Int64(tensor.stride[dim]) * size for dim in order)
    return View(tensor.iterator.toint(), strides, tensor.element_type)


def sequence_view(tensor: Any, spec: ConvSpec) -> View:
    """x or a tensor like it, by (row, channel, time)."""
    return view(tensor, [spec.layout.index(dim) for dim in "BDT"])


def states_view(tensor: Any) -> View:
    """States by (sequence, channel, lane)."""
    return view(tensor, (0, 1, 2))


def column(tensor: Any, index: Any, other: Any = None) -> Any:
    """Address of an element of a vector, or of a matrix."""
    offset = Int64(index) * Int64(tensor.stride[0])
    if other is not None:
        offset += Int64(other) * Int64(tensor.stride[1])
    return tensor.iterator.toint() + offset * (tensor.element_type.width // 8)


def _at(dtype: Any, address: Any, count: int) -> Any:
    size = dtype.width // 8 * count
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=min(size & -size, 16))
    return cute.make_tensor(pointer, cute.make_layout(count))


def raw(dtype: Any, address: Any, count: int) -> Any:
    """``count`` elements in registers, as they are."""
    return _at(dtype, address, count).load()


def widen(spec: Typed, loaded: Any, count: int) -> list[Any]:
    """Loaded elements as wide values."""
    wide = wide_type(spec.x_dtype)
    registers = cute.make_rmem_tensor(count, wide)
    registers.store(loaded.to(wide))
    return [registers[index] for index in range(count)]


def read(spec: Typed, dtype: Any, address: Any, count: int) -> list[Any]:
    """``count`` elements as wide values; the address is aligned to their size, or to 16 bytes."""
    return widen(spec, raw(dtype, address, count), count)


def write(spec: Typed, dtype: Any, address: Any, values: list[Any]) -> None:
    """Round wide values once and store them."""
    registers = cute.make_rmem_tensor(len(values), wide_type(spec.x_dtype))
    for index, value in enumerate(values):
        registers[index] = value
    _at(dtype, address, len(values)).store(registers.load().to(dtype))


def fill(registers: Any, slot: int, values: list[Any]) -> None:
    """Write values into registers from ``slot`` on."""
    for index, value in enumerate(values):
        registers[slot + index] = value


def put(dtype: Any, address: Any, loaded: Any, count: int) -> None:
    """Store elements as they were loaded, bit for bit."""
    _at(dtype, address, count).store(loaded)


def zeros(spec: Typed, count: int) -> list[Any]:
    """Wide zeros."""
    return [wide_type(spec.x_dtype)(0.0) for _ in range(count)]


def read_states(spec: Typed, tensor: Any, sequence: Any, channel: Any, lane: Any, count: int) -> list[Any]:
    """One lane of the states of ``count`` channels, as wide values."""
    states = states_view(tensor)
    return [read(spec, states.dtype, at(states, sequence, channel + i, lane), 1)[0] for i in range(count)]


def _gate(z: Any) -> Any:
    if isinstance(z, Float64):
        return Float64(1.0) / (Float64(1.0) + cute.math.exp(-z))
    return sigmoid(z)


def activated(z: Any, silu: bool) -> Any:
    """z, or ``z * sigmoid(z)``."""
    return z * _gate(z) if silu else z


def slope(z: Any) -> Any:
    """The derivative of SiLU."""
    gate = _gate(z)
    one = type(z)(1.0)
    # Far out, the gate or 1 - gate is an exact zero and its partner finite: no inf * 0.
    return gate * (one + z * (one - gate))


class Cursor:
    """The sequence that a token is of: a register tensor (number, first token, end) that only moves forward.

    Attributes:
        packed: Whether offsets say where sequences lie; else each row is one.
        offsets: The offsets.
        count: Number of packed sequences.
        place: The registers.
    """

    def __init__(self, packed: bool, offsets: Any, row: Any, time: Any) -> None:
        self.packed, self.offsets = packed, offsets
        self.count = Int32(offsets.shape[0]) - 1 if packed else None
        self.place = cute.make_rmem_tensor(3, Int32)
        self.place[0], self.place[1], self.place[2] = Int32(row), Int32(0), Int32(time)

    @property
    def sequence(self) -> Any:
        """Number of the sequence."""
        return self.place[0]

    @property
    def start(self) -> Any:
        """Its first token."""
        return self.place[1]

    @property
    def end(self) -> Any:
        """One past its last token."""
        return self.place[2]


@cute.jit
def seek(cursor: Any, token: Int32) -> None:
    """Go to the sequence of a token."""
    if cutlass.const_expr(cursor.packed):
        low, high = Int32(0), Int32(cursor.count)
        while high - low > 1:
            middle = (low + high) >> 1
            if Int32(cursor.offsets[middle]) <= token:
                low = middle
            else:
                high = middle
        _enter(cursor, low, token)


@cute.jit
def advance(cursor: Any, token: Int32) -> None:
    """Go on to the sequence of a token at or after the last one."""
    if cutlass.const_expr(cursor.packed):
        if token >= cursor.end:
            number, end = Int32(cursor.sequence), Int32(cursor.end)
            while token >= end and number < cursor.count - 1:
                number += 1
                end = Int32(cursor.offsets[number + 1])
            _enter(cursor, number, token)


def _enter(cursor: Any, number: Any, token: Any) -> None:
    cursor.place[0] = number
    # A bad offset must not become a bad address.
    cursor.place[1] = cutlass.max(cutlass.min(Int32(cursor.offsets[number]), token), Int32(0))
    cursor.place[2] = Int32(cursor.offsets[number + 1])


@cute.jit
def check_offsets(offsets: Any, time: Int32) -> None:
    """One block's threads trap unless the offsets run from 0 to ``time`` without decreasing."""
    thread, _, _ = cute.arch.thread_idx()
    count = Int32(offsets.shape[0]) - 1
    bad = Int32(offsets[0]) != 0 or Int32(offsets[count]) != time
    for turn in cutlass.range((count - thread + THREADS - 1) // THREADS, unroll=1):
        index = thread + turn * THREADS
        bad = bad or Int32(offsets[index + 1]) < Int32(offsets[index])
    if bad:
        assemble("trap;", [], [])


def fake(dtype: str, rank: int) -> Any:
    """A stand-in with symbolic extents and strides."""
    kind = element_type(dtype)
    shape = tuple(cute.sym_int32() for _ in range(rank))
    stride = tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(kind, shape, stride, assumed_align=kind.width // 8)
