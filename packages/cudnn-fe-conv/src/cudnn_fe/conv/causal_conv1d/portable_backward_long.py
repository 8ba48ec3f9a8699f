"""The derivative for more taps than registers hold: dz to memory first, then dx, dweight and the rest from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_backward import operands
from cudnn_fe.conv.causal_conv1d.portable_cursor import Cursor, advance, seek, span_of
from cudnn_fe.conv.causal_conv1d.portable_long import RESULTS, LongFilter, grid_of, locate
from cudnn_fe.conv.causal_conv1d.portable_sums import SumPartials
from cudnn_fe.conv.portable_parts import (
    THREADS,
    at,
    bundle,
    ceil_div,
    column,
    fake,
    fill,
    picked,
    read,
    read_states,
    sequence_view,
    states_view,
    view,
    wide_type,
    write,
    zeros,
)
from cudnn_fe.core.cute.arguments import named

__all__ = ["fake_arguments", "launcher"]


class _LongGradient:
    """dx: each thread makes eight neighbours in time, and walks the taps over a window of dz."""

    names = ("weight", "offsets", "d_final", "dz", "dx")

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace) -> None:
        blocks, inner = grid_of(self.spec, t.dx)
        self.kernel(inner, picked(t, self.names)).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, inner: Int32, tensors: Any) -> None:
        spec, t = self.spec, bundle(self.names, tensors)
        row, channel, token = locate(spec, t.dx, inner)
        time = Int32(t.dx.shape[spec.layout.index("T")])
        if token < time and channel < Int32(t.dx.shape[spec.layout.index("D")]):
            self.gather(t, row, channel, token, time)

    @cute.jit
    def gather(self, t: Any, row: Int32, channel: Int32, token: Int32, time: Int32) -> None:
        spec, width = self.spec, self.spec.width
        source, target = sequence_view(t.dz, spec), sequence_view(t.dx, spec)
        totals = cute.make_rmem_tensor(RESULTS, wide_type(spec.x_dtype))
        fill(totals, 0, zeros(spec, RESULTS))
        cursor = Cursor(spec.packed, t.offsets, row, time)
        seek(cursor, token)
        if token + (RESULTS + width - 1) <= cursor.end:
            window = cute.make_rmem_tensor(RESULTS, wide_type(spec.x_dtype))
            for index in cutlass.range_constexpr(RESULTS - 1):
                fill(window, index, read(spec, source.dtype, at(source, row, channel, token + index), 1))
            for lag in cutlass.range(width, unroll=8):
                newest = at(source, row, channel, token + (RESULTS - 1) + lag)
                fill(window, RESULTS - 1, read(spec, source.dtype, newest, 1))
                factor = read(spec, t.weight.element_type, column(t.weight, channel, width - 1 - lag), 1)[0]
                fill(totals, 0, [totals[i] + window[i] * factor for i in range(RESULTS)])
                fill(window, 0, [window[i + 1] for i in range(RESULTS - 1)])
        else:
            for index in cutlass.range_constexpr(RESULTS):
                if token + index < time:
                    advance(cursor, token + index)
                    end = cutlass.min(cursor.end, time)
                    for lag in cutlass.range(cutlass.min(Int32(width), end - (token + index)), unroll=1):
                        grad = read(spec, source.dtype, at(source, row, channel, token + index + lag), 1)[0]
                        factor = read(spec, t.weight.element_type, column(t.weight, channel, width - 1 - lag), 1)[0]
                        fill(totals, index, [totals[index] + grad * factor])
                    if cutlass.const_expr(t.d_final is not None):
                        left = cursor.end - 1 - (token + index)
                        if left <= width - 2:
                            lane = cutlass.min(cutlass.max(width - 2 - left, Int32(0)), Int32(width - 2))
                            more = read_states(spec, t.d_final, cursor.sequence, channel, lane, 1)
                            fill(totals, index, [totals[index] + more[0]])
        for index in cutlass.range_constexpr(RESULTS):
            if token + index < time:
                write(spec, target.dtype, at(target, row, channel, token + index), [totals[index]])


class _LongSums:
    """Partial sums of dweight and dbias: a thread for each channel, tap and stretch of time."""

    names = ("x", "offsets", "initial", "dz", "partial")

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace) -> None:
        columns = Int32(t.partial.shape[1]) * Int32(t.partial.shape[2])
        blocks = ceil_div(columns, THREADS)
        self.kernel(columns, blocks, picked(t, self.names)).launch(
            grid=(blocks * Int32(t.partial.shape[0]), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, columns: Int32, blocks: Int32, tensors: Any) -> None:
        spec, taps, t = self.spec, self.spec.width + 1, bundle(self.names, tensors)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        part = block // blocks
        index = (block - part * blocks) * THREADS + thread
        # Neighbouring threads read neighbouring addresses: channels, or along time the samples of neighbouring taps.
        if cutlass.const_expr(spec.major == "channels"):
            tap = index // Int32(t.partial.shape[2])
            channel = index - tap * Int32(t.partial.shape[2])
        else:
            channel = index // taps
            tap = index - channel * taps
        if index < columns:
            self.total(t, part, channel, tap)

    @cute.jit
    def total(self, t: Any, part: Int32, channel: Int32, tap: Int32) -> None:
        spec, width = self.spec, self.spec.width
        batch, time = (Int32(t.x.shape[spec.layout.index(dim)]) for dim in "BT")
        chunks = Int32(t.partial.shape[0]) // batch
        chunk = ceil_div(time, chunks)
        row = part // chunks
        first = cutlass.min((part - row * chunks) * chunk, time)
        source, grads = sequence_view(t.x, spec), sequence_view(t.dz, spec)
        cursor = Cursor(spec.packed, t.offsets, row, time)
        seek(cursor, cutlass.min(first, time - 1))
        total = cute.make_rmem_tensor(1, wide_type(spec.x_dtype))
        fill(total, 0, zeros(spec, 1))
        lag = width - 1 - tap
        for token in cutlass.range(first, cutlass.min(first + chunk, time), unroll=4):
            grad = read(spec, grads.dtype, at(grads, row, channel, token), 1)[0]
            if lag < 0:  # the bias stands behind the last tap
                fill(total, 0, [total[0] + grad])
            else:
                advance(cursor, token)
                position = token - cursor.start
                if position >= lag:
                    sample = read(spec, source.dtype, at(source, row, channel, token - lag), 1)[0]
                    fill(total, 0, [total[0] + grad * sample])
                elif cutlass.const_expr(t.initial is not None):
                    lane = cutlass.max(width - 1 - lag + position, Int32(0))
                    held = read_states(spec, t.initial, cursor.sequence, channel, lane, 1)[0]
                    fill(total, 0, [total[0] + grad * held])
        place = view(t.partial, (0, 1, 2))
        write(spec, place.dtype, at(place, part, tap, channel), [total[0]])


class _LongInitial:
    """The initial states' gradient from dz: a thread for each sequence, channel and lane."""

    names = ("weight", "offsets", "dz", "d_final", "d_initial")

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace) -> None:
        columns = Int32(t.d_initial.shape[1]) * (self.spec.width - 1)
        blocks = ceil_div(columns, THREADS)
        self.kernel(columns, blocks, picked(t, self.names)).launch(
            grid=(blocks * Int32(t.d_initial.shape[0]), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, columns: Int32, blocks: Int32, tensors: Any) -> None:
        spec, t = self.spec, bundle(self.names, tensors)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sequence = block // blocks
        index = (block - sequence * blocks) * THREADS + thread
        lane = index // Int32(t.d_initial.shape[1])
        channel = index - lane * Int32(t.d_initial.shape[1])
        time = Int32(t.dz.shape[spec.layout.index("T")])
        row, start, end = span_of(spec, t.offsets, sequence, time)
        if index < columns:
            grads, target = sequence_view(t.dz, spec), states_view(t.d_initial)
            total = cute.make_rmem_tensor(1, wide_type(spec.x_dtype))
            fill(total, 0, zeros(spec, 1))
            for position in cutlass.range(cutlass.min(lane + 1, end - start), unroll=1):
                grad = read(spec, grads.dtype, at(grads, row, channel, start + position), 1)[0]
                factor = read(spec, t.weight.element_type, column(t.weight, channel, lane - position), 1)[0]
                fill(total, 0, [total[0] + grad * factor])
            if cutlass.const_expr(t.d_final is not None):
                if lane >= end - start:
                    more = read_states(spec, t.d_final, sequence, channel, lane - (end - start), 1)
                    fill(total, 0, [total[0] + more[0]])
            write(spec, target.dtype, at(target, sequence, channel, lane), [total[0]])


class _Backward:
    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.slopes, self.gradient, self.sums = LongFilter(spec), _LongGradient(spec), _LongSums(spec)
        self.total, self.initial = SumPartials(spec), _LongInitial(spec)

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        spec = self.spec
        t = named([(name, present) for name, present, _, _ in _operands(spec)], tensors)
        self.slopes.launch(stream, t, t.dz)
        self.gradient.launch(stream, t)
        self.sums.launch(stream, t)
        self.total.launch(stream, t.partial, t.dweight, t.dbias)
        if cutlass.const_expr(spec.initial):
            self.initial.launch(stream, t)


def _operands(spec: ConvSpec) -> list[tuple[str, bool, str, int]]:
    wide = "float64" if spec.x_dtype == "float64" else "float32"
    return [*operands(spec), ("dz", True, wide, 3)]


def launcher(spec: ConvSpec) -> Any:
    """The host function ``launch(stream, *operands, *results, partial sums, dz)`` of the tensors that a spec has.

    Args:
        spec: What to compile for.
    """
    return _Backward(spec)


def fake_arguments(spec: ConvSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    return tuple(fake(kind, rank) for _, present, kind, rank in _operands(spec) if present)
