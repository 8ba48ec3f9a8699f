"""What the convolution's kernels share: addresses, vectors, sums of samples times taps, and the activation.

Sums are float32, float64 for float64 ("wide"). Vectors lie along channels or along time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from cutlass import Float32, Float64, Int64, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.core.cute.activations import sigmoid
from cudnn_fe.core.cute.numerics import element_type

__all__ = [
    "THREADS",
    "Typed",
    "View",
    "activated",
    "at",
    "bundle",
    "ceil_div",
    "column",
    "dot",
    "fake",
    "fill",
    "keep_rows",
    "launch_limits",
    "load_parameters",
    "load_shift",
    "load_taps",
    "picked",
    "put",
    "raw",
    "read",
    "read_states",
    "registers",
    "rows_of",
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


def registers(spec: Typed, count: int) -> Any:
    """Wide zeros in registers that branches may write to; one where none is wanted."""
    made = cute.make_rmem_tensor(max(count, 1), wide_type(spec.x_dtype))
    fill(made, 0, zeros(spec, max(count, 1)))
    return made


def rows_of(held: Any, rows: int, count: int) -> list[list[Any]]:
    """Registers as rows of ``count`` values."""
    return [[held[row * count + i] for i in range(count)] for row in range(rows)]


def keep_rows(held: Any, rows: list[list[Any]], first: int = 0) -> None:
    """Back from rows to registers, from row ``first`` on."""
    for index, row in enumerate(rows):
        fill(held, (first + index) * len(row), row)


def load_taps(spec: Any, weight: Any, channel: Any, count: int) -> list[list[Any]]:
    """Taps of ``count`` channels by (tap, channel), oldest first."""
    width = spec.width
    if spec.whole_parameters and count == spec.vector:
        whole = read(spec, weight.element_type, column(weight, channel), count * width)
        return [[whole[i * width + tap] for i in range(count)] for tap in range(width)]
    return [
        [read(spec, weight.element_type, column(weight, channel + i, tap), 1)[0] for i in range(count)]
        for tap in range(width)
    ]


def load_shift(spec: Any, bias: Any, channel: Any, count: int) -> Any:
    """The bias of ``count`` channels, or None."""
    if bias is None:
        return None
    if spec.whole_parameters and count == spec.vector:
        return read(spec, bias.element_type, column(bias, channel), count)
    return [read(spec, bias.element_type, column(bias, channel + i), 1)[0] for i in range(count)]


def load_parameters(spec: Any, weight: Any, bias: Any, channel: Any, count: int) -> tuple[Any, Any]:
    """Taps as `load_taps`, and the bias as `load_shift`."""
    shift = load_shift(spec, bias, channel, count)
    return load_taps(spec, weight, channel, count), shift


def dot(samples: list[list[Any]], taps: list[list[Any]], shift: Any) -> list[Any]:
    """Each channel's bias and its samples times taps, added oldest first."""
    totals = shift
    for sample, tap in zip(samples, taps, strict=True):
        terms = [sample[i] * tap[i] for i in range(len(tap))]
        totals = terms if totals is None else [total + term for total, term in zip(totals, terms, strict=True)]
    return totals


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


def picked(t: SimpleNamespace, names: Sequence[str]) -> tuple[Any, ...]:
    """The named tensors, None for absent ones: what a kernel takes as one argument."""
    return tuple(getattr(t, name, None) for name in names)


def bundle(names: Sequence[str], tensors: Sequence[Any]) -> SimpleNamespace:
    """What `picked` picked, by name again."""
    return SimpleNamespace(**dict(zip(names, tensors, strict=True)))


def launch_limits(spec: Any, stream: Any) -> dict[str, Any]:
    """Launch arguments of a kernel whose spec says how many of its blocks are to be resident."""
    return {
        "block": (THREADS, 1, 1),
        "stream": stream,
        "min_blocks_per_mp": spec.resident,
        "preferred_smem_carveout": -1,  # the driver's choice; without it the compiler asks a GPU
    }


def fake(dtype: str, rank: int) -> Any:
    """A stand-in with symbolic extents and strides."""
    kind = element_type(dtype)
    shape = tuple(cute.sym_int32() for _ in range(rank))
    stride = tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(kind, shape, stride, assumed_align=kind.width // 8)
