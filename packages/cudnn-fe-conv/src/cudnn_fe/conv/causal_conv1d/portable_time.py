"""The convolution with vectors along time: each thread filters vectors of one channel, a warp a stretch of it.

A vector needs the W-1 samples before it, which are its neighbour's: they are read again and come from the L1 cache.
What a thread needs next is on its way while it works on what came before.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.chunks import chunk_count
from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_ahead import (
    Ahead,
    History,
    arrived,
    fetch,
    fetch_history,
    history_of,
    widen_words,
)
from cudnn_fe.conv.causal_conv1d.portable_cursor import Cursor, advance, check_offsets, seek
from cudnn_fe.conv.causal_conv1d.portable_starts import (
    blocked_before,
    starts_around,
    unless_blocked,
)
from cudnn_fe.conv.portable_parts import (
    THREADS,
    activated,
    at,
    bundle,
    ceil_div,
    dot,
    fill,
    launch_limits,
    load_parameters,
    picked,
    read_states,
    registers,
    sequence_view,
    write,
    zeros,
)

__all__ = ["History", "TimeForward", "TimeWalk", "from_initial", "history_of", "masked_samples"]


class TimeWalk:
    """What forward and backward share: which warp has which channel and which chunk of time.

    Attributes:
        names: The tensors that the kernel takes.
        spec: What it is compiled for.
        rows: Channels that a block has.
        unit: Tokens that the lanes of a channel take in one turn.
    """

    names: ClassVar[tuple[str, ...]]

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.rows = THREADS // spec.lanes
        self.unit = spec.lanes * spec.vector * spec.unroll

    def chunks_of(self, t: SimpleNamespace, row_blocks: Any) -> Any:
        """Into how many chunks time is cut."""
        raise NotImplementedError

    def walk(self, t: Any, row: Any, channel: Any, first: Any, stop: Any, slot: Any, live: Any) -> None:
        """Tokens ``first`` to ``stop`` of one channel, shared among the lanes, which store if ``live``."""
        raise NotImplementedError

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace) -> None:
        """Launch on named tensors."""
        batch, channels, time = (Int32(t.x.shape[self.spec.layout.index(dim)]) for dim in "BDT")
        row_blocks = ceil_div(batch * channels, self.rows)
        chunks = self.chunks_of(t, row_blocks)
        chunk = ceil_div(ceil_div(time, chunks), self.unit) * self.unit
        self.kernel(chunk, chunks, picked(t, self.names)).launch(
            grid=(chunks * row_blocks, 1, 1), **launch_limits(self.spec, stream)
        )

    @cute.kernel
    def kernel(self, chunk: Int32, chunks: Int32, tensors: Any) -> None:
        """One block: some channels, a chunk of time."""
        spec = self.spec
        t = bundle(self.names, tensors)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        batch, channels, time = (Int32(t.x.shape[spec.layout.index(dim)]) for dim in "BDT")
        if cutlass.const_expr(spec.packed):
            if block == 0:
                check_offsets(t.offsets, time)
        row_block = block // chunks
        index = block - row_block * chunks
        line = row_block * self.rows + thread // spec.lanes
        first = cutlass.min(index * chunk, time)
        stop = cutlass.min(first + chunk, time)
        # Lanes past the last channel take as many turns as others, for what a warp does together, and store nothing.
        live = line < batch * channels
        line = cutlass.min(line, batch * channels - 1)
        row = line // channels
        self.walk(t, row, line - row * channels, first, stop, row * chunks + index, live)

    def fetch(self, streams: Any, before: Any, views: Any, row: Any, channel: Any, token: Any, stop: Any) -> None:
        """Issue the loads of a turn's vectors of each stream, and of what lies before those of the first.

        They are predicated: behind a branch, the compiler would move them past the work that they should run under.
        """
        spec = self.spec
        stride = spec.lanes * spec.vector
        tokens = [token + index * stride for index in range(spec.unroll)]
        for index, (ahead, source) in enumerate(zip(streams, views, strict=True)):
            size = along_time(source, spec)
            address = at(source, row, channel, token)
            fetch(ahead, address, stride * size, [Int32(one < stop) for one in tokens])
            if index == 0:
                fetch_history(spec, before, address, stride * size, size, tokens, stop)


class TimeForward(TimeWalk):
    """y."""

    names = ("x", "weight", "bias", "offsets", "initial", "y", "starts")

    def chunks_of(self, t: SimpleNamespace, row_blocks: Any) -> Any:
        """As many as keep the chip busy."""
        time = Int32(t.x.shape[self.spec.layout.index("T")])
        return chunk_count(self.spec, self.spec.waves, row_blocks, time, self.unit, cutlass.select_)

    @cute.jit
    def walk(
        self, t: Any, row: Int32, channel: Int32, first: Int32, stop: Int32, slot: Int32, live: cutlass.Boolean
    ) -> None:
        """Tokens ``first`` to ``stop`` of one channel, shared among the lanes."""
        spec, count, unroll = self.spec, self.spec.vector, self.spec.unroll
        thread, _, _ = cute.arch.thread_idx()
        source, target = sequence_view(t.x, spec), sequence_view(t.y, spec)
        own, before = Ahead(source, unroll, count), History(spec, source)
        begin = first + thread % spec.lanes * count
        turns = ceil_div(stop - first, self.unit)
        if not live:
            stop = first
        self.fetch([own], before, [source], row, channel, begin, stop)
        taps, shift = load_parameters(spec, t.weight, t.bias, channel, 1)
        cursor = Cursor(spec.packed, t.offsets, row, t.x.shape[spec.layout.index("T")])
        if cutlass.const_expr(not spec.marked):
            seek(cursor, cutlass.min(begin, cursor.time - 1))
        for turn in cutlass.range(turns, unroll=1):
            words, words_before = arrived(own), [arrived(piece) for piece in before.ahead]
            token = begin + turn * self.unit
            self.fetch([own], before, [source], row, channel, token + self.unit, stop)
            vectors = zip(history_of(spec, before, words_before), widen_words(spec, own, words), strict=True)
            lines = [[*past, *vector] for past, vector in vectors]
            for step in cutlass.range_constexpr(unroll):
                one = token + step * spec.lanes * count
                self.vector(t, target, taps, shift, cursor, lines[step], row, channel, one, stop)

    @cute.jit
    def vector(
        self,
        t: Any,
        target: Any,
        taps: Any,
        shift: Any,
        cursor: Any,
        samples: Any,
        row: Int32,
        channel: Int32,
        token: Int32,
        stop: Int32,
    ) -> None:
        """The results of one vector."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        goal = at(target, row, channel, token)
        if cutlass.const_expr(not spec.packed):
            held = from_initial(spec, samples, t.initial, row, channel, token)
            values = [self.result(held[index : index + width], taps, shift) for index in range(count)]
            if token < stop:
                write(spec, target.dtype, goal, values)
        elif cutlass.const_expr(spec.marked):
            blocked = blocked_before(starts_around(t.starts, token, cursor.time, width), width)
            values = []
            for index in cutlass.range_constexpr(count):
                newest_first = unless_blocked(spec, blocked, index, samples[index : index + width][::-1])
                values.append(self.result(newest_first[::-1], taps, shift))
            if token < stop:
                write(spec, target.dtype, goal, values)
        elif token < stop:
            advance(cursor, token)
            if token - cursor.start >= width - 1 and token + count <= cursor.end:
                write(
                    spec,
                    target.dtype,
                    goal,
                    [self.result(samples[index : index + width], taps, shift) for index in range(count)],
                )
            else:
                for index in cutlass.range_constexpr(count):
                    advance(cursor, token + index)
                    masked = masked_samples(
                        spec, samples[index : index + width], token + index - cursor.start, cursor, t.initial, channel
                    )
                    value = self.result(masked, taps, shift)
                    write(spec, target.dtype, goal + index * target.strides[2], [value])

    def result(self, samples: list[Any], taps: Any, shift: Any) -> Any:
        """One result from its W samples, oldest first."""
        return activated(dot([[sample] for sample in samples], taps, shift)[0], self.spec.silu)


def along_time(source: Any, spec: ConvSpec) -> Any:
    """Bytes between neighbours in time: a constant where vectors promise it."""
    return source.dtype.width // 8 if spec.vector > 1 else source.strides[2]


def from_initial(spec: ConvSpec, samples: list[Any], initial: Any, row: Any, channel: Any, token: Any) -> list[Any]:
    """A vector's samples, and before the first token the initial state's instead of zeros."""
    if initial is None or spec.width == 1:
        return samples
    before = registers(spec, spec.width - 1)
    fill(before, 0, samples[: spec.width - 1])
    _fill_initial(spec, before, initial, row, channel, token)
    return [*(before[index] for index in range(spec.width - 1)), *samples[spec.width - 1 :]]


@cute.jit
def _fill_initial(spec: cutlass.Constexpr, before: Any, initial: Any, row: Int32, channel: Int32, token: Int32) -> None:
    if token < spec.width - 1:
        for index in cutlass.range_constexpr(spec.width - 1):
            if token + index < spec.width - 1:
                fill(before, index, read_states(spec, initial, row, channel, token + index, 1))


def masked_samples(
    spec: ConvSpec, samples: list[Any], position: Any, cursor: Any, initial: Any, channel: Any
) -> list[Any]:
    """A token's W samples, those before its sequence from the initial state or zero."""
    lags, zero = range(spec.width - 1, -1, -1), zeros(spec, 1)[0]
    held = [cutlass.select_(position >= lag, sample, zero) for sample, lag in zip(samples, lags, strict=True)]
    if initial is None or spec.width == 1:
        return held
    before = registers(spec, spec.width - 1)
    fill(before, 0, held[:-1])
    _fill_initial(spec, before, initial, cursor.sequence, channel, position)
    return [*(before[index] for index in range(spec.width - 1)), held[-1]]
