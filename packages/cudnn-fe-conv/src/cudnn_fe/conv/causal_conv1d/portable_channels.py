"""The convolution with vectors along channels: each thread walks time with its last W-1 samples in registers.

Threads side by side take neighbouring vectors of channels, so every step of a warp reads and writes whole lines. Time
is cut into chunks, for there to be enough threads; a chunk begins by reading the W-1 samples before it. What a thread
needs next is on its way while it works on what came before.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.chunks import chunk_count
from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_ahead import Ahead, arrived, fetch, widen_words
from cudnn_fe.conv.causal_conv1d.portable_cursor import Cursor, advance, check_offsets, seek
from cudnn_fe.conv.portable_parts import (
    THREADS,
    activated,
    at,
    bundle,
    ceil_div,
    dot,
    keep_rows,
    launch_limits,
    load_parameters,
    picked,
    read,
    read_states,
    registers,
    rows_of,
    sequence_view,
    write,
)

__all__ = ["ChannelsForward", "ChannelsWalk", "enter", "fill_window"]

_LONG = 96  # tokens of a chunk


class ChannelsWalk:
    """What forward and backward share: which thread has which channels and which chunk of time.

    Attributes:
        names: The tensors that the kernel takes.
        spec: What it is compiled for.
        groups: Chunks of time that a block has.
    """

    names: ClassVar[tuple[str, ...]]

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.groups = THREADS // spec.lanes

    def chunks_of(self, t: SimpleNamespace, channel_blocks: Any) -> Any:
        """Into how many chunks time is cut."""
        raise NotImplementedError

    def walk(self, t: Any, row: Any, channel: Any, first: Any, stop: Any, slot: Any) -> None:
        """Tokens ``first`` to ``stop`` of one vector of channels; partial sums go to ``slot``."""
        raise NotImplementedError

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace) -> None:
        """Launch on named tensors."""
        spec = self.spec
        batch, channels, time = (Int32(t.x.shape[spec.layout.index(dim)]) for dim in "BDT")
        channel_blocks = ceil_div(channels, spec.vector * spec.lanes)
        chunks = self.chunks_of(t, channel_blocks)
        chunk = ceil_div(ceil_div(time, chunks), spec.unroll) * spec.unroll
        chunk_blocks = ceil_div(chunks, self.groups)
        self.kernel(chunk, chunks, chunk_blocks, channel_blocks, picked(t, self.names)).launch(
            grid=(channel_blocks * chunk_blocks * batch, 1, 1), **launch_limits(self.spec, stream)
        )

    @cute.kernel
    def kernel(self, chunk: Int32, chunks: Int32, chunk_blocks: Int32, channel_blocks: Int32, tensors: Any) -> None:
        """One block: neighbouring vectors of channels, some chunks of time."""
        spec = self.spec
        t = bundle(self.names, tensors)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        channels, time = (Int32(t.x.shape[spec.layout.index(dim)]) for dim in "DT")
        if cutlass.const_expr(spec.packed):
            if block == 0:
                check_offsets(t.offsets, time)
        rest = block // channel_blocks
        row = rest // chunk_blocks
        channel = ((block - rest * channel_blocks) * spec.lanes + thread % spec.lanes) * spec.vector
        index = (rest - row * chunk_blocks) * self.groups + thread // spec.lanes
        if channel < channels and index < chunks:
            # A chunk past the end has no tokens.
            first = cutlass.min(index * chunk, time)
            self.walk(t, row, channel, first, cutlass.min(first + chunk, time), row * chunks + index)


class ChannelsForward(ChannelsWalk):
    """y."""

    names = ("x", "weight", "bias", "offsets", "initial", "y")

    def chunks_of(self, t: SimpleNamespace, channel_blocks: Any) -> Any:
        """As many as keep the chip busy, with some groups of tokens for each thread."""
        batch, time = (Int32(t.x.shape[self.spec.layout.index(dim)]) for dim in "BT")
        unroll, tokens = self.spec.unroll, ceil_div(time, self.groups)
        long, short = (
            chunk_count(self.spec, waves, channel_blocks * batch, tokens, unroll, cutlass.select_)
            for waves in (self.spec.waves, 4 * self.spec.waves)
        )
        # Two waves of long chunks move most. The starts and ends of short ones weigh more, and fall together less the
        # more of them there are.
        count = cutlass.select_(long * _LONG < tokens, long, short)
        return cutlass.min(count * self.groups, ceil_div(time, 4 * unroll))

    @cute.jit
    def walk(self, t: Any, row: Int32, channel: Int32, first: Int32, stop: Int32, slot: Int32) -> None:
        """Tokens ``first`` to ``stop`` of one vector of channels."""
        spec, count, width, unroll = self.spec, self.spec.vector, self.spec.width, self.spec.unroll
        source, target = sequence_view(t.x, spec), sequence_view(t.y, spec)
        ahead = Ahead(source, unroll, count)
        if first + unroll <= stop:
            fetch(ahead, at(source, row, channel, first), source.strides[2])
        taps, shift = load_parameters(spec, t.weight, t.bias, channel, count)
        cursor = Cursor(spec.packed, t.offsets, row, t.x.shape[spec.layout.index("T")])
        seek(cursor, cutlass.min(first, cursor.time - 1))
        window = registers(spec, (width - 1) * count)
        fill_window(spec, window, cursor, source, t.initial, row, channel, first)
        for turn in cutlass.range(ceil_div(stop - first, unroll), unroll=1):
            token = first + turn * unroll
            enter(spec, window, cursor, source, t.initial, row, channel, token)
            words = arrived(ahead)
            if token + 2 * unroll <= stop:
                fetch(ahead, at(source, row, channel, token + unroll), source.strides[2])
            if token + unroll <= cutlass.min(stop, cursor.end):
                samples = [*rows_of(window, width - 1, count), *widen_words(spec, ahead, words)]
                goal = at(target, row, channel, token)
                for step in cutlass.range_constexpr(unroll):
                    z = dot(samples[step : step + width], taps, shift)
                    values = [activated(value, spec.silu) for value in z]
                    write(spec, target.dtype, goal + step * target.strides[2], values)
                keep_rows(window, samples[unroll:])
            else:
                for step in cutlass.range(cutlass.min(Int32(unroll), stop - token), unroll=1):
                    one = token + step
                    enter(spec, window, cursor, source, t.initial, row, channel, one)
                    held = rows_of(window, width - 1, count)
                    held.append(read(spec, source.dtype, at(source, row, channel, one), count))
                    values_of_one = [activated(value, spec.silu) for value in dot(held, taps, shift)]
                    write(spec, target.dtype, at(target, row, channel, one), values_of_one)
                    keep_rows(window, held[1:])


@cute.jit
def enter(
    spec: cutlass.Constexpr,
    window: Any,
    cursor: Any,
    source: Any,
    initial: Any,
    row: Int32,
    channel: Int32,
    token: Int32,
) -> None:
    """Start the window anew where a packed sequence begins."""
    if cutlass.const_expr(spec.packed):
        if token >= cursor.end:
            advance(cursor, token)
            fill_window(spec, window, cursor, source, initial, row, channel, token)


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
    count, before = spec.vector, spec.width - 1
    if cutlass.const_expr(before > 0):
        position = token - cursor.start
        history = Ahead(source, before, count)
        held = [Int32(position >= before - slot) for slot in range(before)]
        fetch(history, at(source, row, channel, token - before), source.strides[2], held)
        keep_rows(window, widen_words(spec, history, arrived(history)))
        if cutlass.const_expr(initial is not None):
            for slot in cutlass.range_constexpr(before):
                lane = slot + position
                if lane < before:
                    keep_rows(window, [read_states(spec, initial, cursor.sequence, channel, lane, count)], slot)
