"""The forward convolution with vectors along channels: each thread walks time with its last W-1 samples in registers.

Threads side by side take neighbouring vectors of channels, so every step of a warp reads and writes whole lines. Time
is cut into chunks, for there to be enough threads; a chunk begins by reading the W-1 samples before it.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.portable_parts import (
    THREADS,
    Cursor,
    activated,
    advance,
    at,
    ceil_div,
    check_offsets,
    column,
    fill,
    raw,
    read,
    read_states,
    seek,
    sequence_view,
    wide_type,
    widen,
    write,
    zeros,
)

__all__ = ["ChannelsForward", "fill_window", "load_parameters"]

_UNROLL = 8  # tokens whose loads are in flight together


class ChannelsForward:
    """The kernel for a spec."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.groups = THREADS // spec.lanes

    @cute.jit
    def launch(self, stream: cuda.CUstream, x: Any, weight: Any, bias: Any, offsets: Any, initial: Any, y: Any) -> None:
        """Fill y."""
        spec = self.spec
        batch, channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BDT")
        channel_blocks = ceil_div(channels, spec.vector * spec.lanes)
        wanted = cutlass.max(Int32(spec.waves * spec.multiprocessors) // (channel_blocks * batch), Int32(1))
        chunk = ceil_div(ceil_div(time, wanted * self.groups), _UNROLL) * _UNROLL
        chunk_blocks = ceil_div(time, chunk * self.groups)
        self.kernel(x, weight, bias, offsets, initial, y, chunk, chunk_blocks, channel_blocks).launch(
            grid=(channel_blocks * chunk_blocks * batch, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        bias: Any,
        offsets: Any,
        initial: Any,
        y: cute.Tensor,
        chunk: Int32,
        chunk_blocks: Int32,
        channel_blocks: Int32,
    ) -> None:
        """One block: neighbouring vectors of channels, some chunks of time."""
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "DT")
        if cutlass.const_expr(spec.packed):
            if block == 0:
                check_offsets(offsets, time)
        rest = block // channel_blocks
        row = rest // chunk_blocks
        channel = ((block - rest * channel_blocks) * spec.lanes + thread % spec.lanes) * spec.vector
        first = ((rest - row * chunk_blocks) * self.groups + thread // spec.lanes) * chunk
        if channel < channels and first < time:
            self.walk(x, weight, bias, offsets, initial, y, row, channel, first, cutlass.min(first + chunk, time))

    @cute.jit
    def walk(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        offsets: Any,
        initial: Any,
        y: Any,
        row: Int32,
        channel: Int32,
        first: Int32,
        stop: Int32,
    ) -> None:
        """Tokens ``first`` to ``stop`` of one vector of channels."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        source, target = sequence_view(x, spec), sequence_view(y, spec)
        taps, shift = load_parameters(spec, weight, bias, channel, count)
        cursor = Cursor(spec.packed, offsets, row, x.shape[spec.layout.index("T")])
        seek(cursor, first)
        window = cute.make_rmem_tensor(max(width - 1, 1) * count, wide_type(spec.x_dtype))
        fill_window(spec, window, cursor, source, initial, row, channel, first)
        for turn in cutlass.range(ceil_div(stop - first, _UNROLL), unroll=1):
            token = first + turn * _UNROLL
            self.enter(window, cursor, source, initial, row, channel, token)
            if token + _UNROLL <= cutlass.min(stop, cursor.end):
                address = at(source, row, channel, token)
                loaded = [raw(source.dtype, address + step * source.strides[2], count) for step in range(_UNROLL)]
                samples = [[window[lag * count + i] for i in range(count)] for lag in range(width - 1)]
                goal = at(target, row, channel, token)
                for step in cutlass.range_constexpr(_UNROLL):
                    samples.append(widen(spec, loaded[step], count))
                    values = _filtered(samples[-width:], taps, shift, spec.silu)
                    write(spec, target.dtype, goal + step * target.strides[2], values)
                _keep(window, samples[len(samples) - (width - 1) :])
            else:
                for step in cutlass.range(cutlass.min(Int32(_UNROLL), stop - token), unroll=1):
                    one = token + step
                    self.enter(window, cursor, source, initial, row, channel, one)
                    held = [[window[lag * count + i] for i in range(count)] for lag in range(width - 1)]
                    held.append(read(spec, source.dtype, at(source, row, channel, one), count))
                    values = _filtered(held, taps, shift, spec.silu)
                    write(spec, target.dtype, at(target, row, channel, one), values)
                    _keep(window, held[1:])

    @cute.jit
    def enter(
        self, window: Any, cursor: Any, source: Any, initial: Any, row: Int32, channel: Int32, token: Int32
    ) -> None:
        """Start the window anew where a packed sequence begins."""
        if cutlass.const_expr(self.spec.packed):
            if token >= cursor.end:
                advance(cursor, token)
                fill_window(self.spec, window, cursor, source, initial, row, channel, token)


def load_parameters(spec: ConvSpec, weight: Any, bias: Any, channel: Any, count: int) -> tuple[Any, Any]:
    """Taps by (tap, channel), oldest first, and the bias of each channel or None."""

    def scalar(tensor: Any, *place: Any) -> Any:
        return read(spec, tensor.element_type, column(tensor, *place), 1)[0]

    taps = [[scalar(weight, channel + i, tap) for i in range(count)] for tap in range(spec.width)]
    return taps, None if bias is None else [scalar(bias, channel + i) for i in range(count)]


def _filtered(samples: list[list[Any]], taps: list[list[Any]], shift: Any, silu: bool) -> list[Any]:
    values = []
    for i in range(len(taps[0])):
        total = samples[0][i] * taps[0][i]
        for sample, tap in zip(samples[1:], taps[1:], strict=True):
            total += sample[i] * tap[i]
        values.append(activated(total if shift is None else total + shift[i], silu))
    return values


def _keep(window: Any, samples: list[list[Any]]) -> None:
    for lag, sample in enumerate(samples):
        fill(window, lag * len(sample), sample)


@cute.jit
def fill_window(
    spec: cutlass.Constexpr,
    window: Any,
    cursor: Any,
    source: Any,
    initial: Any,
    row: Int32,
    channel: Int32,
    token: Int32,
) -> None:
    """The W-1 samples before a token: of its own sequence, then of its initial state, else zeros."""
    count, width = spec.vector, spec.width
    position = token - cursor.start
    for lag in cutlass.range_constexpr(1, width):
        slot = (width - 1 - lag) * count
        if position >= lag:
            fill(window, slot, read(spec, source.dtype, at(source, row, channel, token - lag), count))
        elif cutlass.const_expr(initial is not None):
            lane = cutlass.max(width - 1 - lag + position, Int32(0))
            fill(window, slot, read_states(spec, initial, cursor.sequence, channel, lane, count))
        else:
            fill(window, slot, zeros(spec, count))
