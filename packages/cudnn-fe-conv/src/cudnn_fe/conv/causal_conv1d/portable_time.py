"""The forward convolution with vectors along time: each thread filters vectors of one channel, a warp a stretch of it.

A vector needs the W-1 samples before it, which are its neighbour's: they are read again and come from the L1 cache.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_channels import load_parameters
from cudnn_fe.conv.portable_parts import (
    THREADS,
    Cursor,
    activated,
    advance,
    at,
    ceil_div,
    check_offsets,
    raw,
    read_states,
    seek,
    sequence_view,
    widen,
    write,
    zeros,
)

__all__ = ["TimeForward", "load_before", "masked_sample", "widen_before"]

_UNROLL = 4  # vectors of a thread whose loads are in flight together


class TimeForward:
    """The kernel for a spec."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.rows = THREADS // spec.lanes
        self.unroll = _UNROLL if spec.lanes == 32 else 1
        self.unit = spec.lanes * spec.vector * self.unroll

    @cute.jit
    def launch(self, stream: cuda.CUstream, x: Any, weight: Any, bias: Any, offsets: Any, initial: Any, y: Any) -> None:
        """Fill y."""
        spec = self.spec
        batch, channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BDT")
        row_blocks = ceil_div(batch * channels, self.rows)
        wanted = cutlass.max(Int32(spec.waves * spec.multiprocessors) // row_blocks, Int32(1))
        chunk = ceil_div(ceil_div(time, wanted), self.unit) * self.unit
        chunks = ceil_div(time, chunk)
        self.kernel(x, weight, bias, offsets, initial, y, chunk, chunks).launch(
            grid=(chunks * row_blocks, 1, 1), block=(THREADS, 1, 1), stream=stream
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
        chunks: Int32,
    ) -> None:
        """One block: some channels, a chunk of time."""
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        batch, channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BDT")
        if cutlass.const_expr(spec.packed):
            if block == 0:
                check_offsets(offsets, time)
        row_block = block // chunks
        line = row_block * self.rows + thread // spec.lanes
        first = (block - row_block * chunks) * chunk
        row = line // channels
        if line < batch * channels:
            stop = cutlass.min(first + chunk, time)
            self.walk(x, weight, bias, offsets, initial, y, row, line - row * channels, first, stop)

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
        """Tokens ``first`` to ``stop`` of one channel, shared among the lanes."""
        spec, count = self.spec, self.spec.vector
        thread, _, _ = cute.arch.thread_idx()
        source, target = sequence_view(x, spec), sequence_view(y, spec)
        taps, shift = load_parameters(spec, weight, bias, channel, 1)
        taps, shift = [tap[0] for tap in taps], None if shift is None else shift[0]
        time = Int32(x.shape[spec.layout.index("T")])
        start = first + thread % spec.lanes * count
        cursor = Cursor(spec.packed, offsets, row, time)
        seek(cursor, cutlass.min(start, time - 1))
        for turn in cutlass.range(ceil_div(stop - first, self.unit), unroll=1):
            tokens = [start + turn * self.unit + step * spec.lanes * count for step in range(self.unroll)]
            loaded, before = [], []
            for step in cutlass.range_constexpr(self.unroll):
                inside = cutlass.min(tokens[step], time - count)
                loaded.append(raw(source.dtype, at(source, row, channel, inside), count))
                before.append(load_before(spec, source, row, channel, inside))
            for step in cutlass.range_constexpr(self.unroll):
                token = tokens[step]
                if token < stop:
                    advance(cursor, token)
                    samples = widen_before(spec, before[step]) + widen(spec, loaded[step], count)
                    goal = at(target, row, channel, token)
                    if token - cursor.start >= spec.width - 1 and token + count <= cursor.end:
                        values = []
                        for index in cutlass.range_constexpr(count):
                            values.append(self.filtered(samples[index : index + spec.width], taps, shift))
                        write(spec, target.dtype, goal, values)
                    else:
                        for index in cutlass.range_constexpr(count):
                            advance(cursor, token + index)
                            position = token + index - cursor.start
                            masked = [
                                masked_sample(
                                    spec, samples[index + tap], spec.width - 1 - tap, position, cursor, initial, channel
                                )
                                for tap in range(spec.width)
                            ]
                            value = self.filtered(masked, taps, shift)
                            write(spec, target.dtype, goal + index * target.strides[2], [value])

    def filtered(self, samples: list[Any], taps: list[Any], shift: Any) -> Any:
        """One result from its W samples, oldest first."""
        total = samples[0] * taps[0]
        for sample, tap in zip(samples[1:], taps[1:], strict=True):
            total += sample * tap
        return activated(total if shift is None else total + shift, self.spec.silu)


def load_before(spec: ConvSpec, source: Any, row: Any, channel: Any, token: Any) -> list[Any]:
    """The samples before a vector as loaded; at the beginning of a row some others, which nothing may use."""
    if spec.width == 1:
        return []
    if spec.vector >= spec.width - 1:
        place = cutlass.max(token - spec.vector, Int32(0))
        return [raw(source.dtype, at(source, row, channel, place), spec.vector)]
    lags = range(spec.width - 1, 0, -1)
    return [raw(source.dtype, at(source, row, channel, cutlass.max(token - lag, Int32(0))), 1) for lag in lags]


def widen_before(spec: ConvSpec, loaded: list[Any]) -> list[Any]:
    """The W-1 samples that `load_before` loaded, oldest first."""
    if len(loaded) == 1 and spec.vector >= spec.width - 1:
        return widen(spec, loaded[0], spec.vector)[spec.vector - (spec.width - 1) :]
    return [widen(spec, one, 1)[0] for one in loaded]


@cute.jit
def masked_sample(
    spec: cutlass.Constexpr,
    sample: Any,
    lag: cutlass.Constexpr,
    position: Int32,
    cursor: Any,
    initial: Any,
    channel: Int32,
) -> Any:
    """The sample ``lag`` steps back if the sequence has it, else the initial state's or zero."""
    result = sample
    if cutlass.const_expr(lag > 0):
        if position < lag:
            result = zeros(spec, 1)[0]
            if cutlass.const_expr(initial is not None):
                lane = cutlass.max(spec.width - 1 - lag + position, Int32(0))
                result = read_states(spec, initial, cursor.sequence, channel, lane, 1)[0]
    return result
