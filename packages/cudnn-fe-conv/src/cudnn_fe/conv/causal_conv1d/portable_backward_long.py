"""The derivative for more taps than registers hold: dz to memory first, then dx, dweight and the rest from it."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_backward import operands
from cudnn_fe.conv.causal_conv1d.portable_long import RESULTS, LongFilter, grid_of, locate
from cudnn_fe.conv.causal_conv1d.portable_sums import SumPartials
from cudnn_fe.conv.portable_parts import (
    THREADS,
    Cursor,
    advance,
    at,
    ceil_div,
    column,
    fake,
    fill,
    read,
    read_states,
    seek,
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

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    @cute.jit
    def launch(self, stream: cuda.CUstream, weight: Any, offsets: Any, d_final: Any, dz: Any, dx: Any) -> None:
        blocks, inner = grid_of(self.spec, dx)
        self.kernel(weight, offsets, d_final, dz, dx, inner).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self, weight: cute.Tensor, offsets: Any, d_final: Any, dz: cute.Tensor, dx: cute.Tensor, inner: Int32
    ) -> None:
        spec = self.spec
        row, channel, token = locate(spec, dx, inner)
        time = Int32(dx.shape[spec.layout.index("T")])
        if token < time and channel < Int32(dx.shape[spec.layout.index("D")]):
            self.gather(weight, offsets, d_final, dz, dx, row, channel, token, time)

    @cute.jit
    def gather(
        self,
        weight: Any,
        offsets: Any,
        d_final: Any,
        dz: Any,
        dx: Any,
        row: Int32,
        channel: Int32,
        token: Int32,
        time: Int32,
    ) -> None:
        spec, width = self.spec, self.spec.width
        source, target = sequence_view(dz, spec), sequence_view(dx, spec)
        totals = cute.make_rmem_tensor(RESULTS, wide_type(spec.x_dtype))
        fill(totals, 0, zeros(spec, RESULTS))
        cursor = Cursor(spec.packed, offsets, row, time)
        seek(cursor, token)
        if token + (RESULTS + width - 1) <= cursor.end:
            window = cute.make_rmem_tensor(RESULTS, wide_type(spec.x_dtype))
            for index in cutlass.range_constexpr(RESULTS - 1):
                fill(window, index, read(spec, source.dtype, at(source, row, channel, token + index), 1))
            for lag in cutlass.range(width, unroll=8):
                newest = at(source, row, channel, token + (RESULTS - 1) + lag)
                fill(window, RESULTS - 1, read(spec, source.dtype, newest, 1))
                factor = read(spec, weight.element_type, column(weight, channel, width - 1 - lag), 1)[0]
                fill(totals, 0, [totals[i] + window[i] * factor for i in range(RESULTS)])
                fill(window, 0, [window[i + 1] for i in range(RESULTS - 1)])
        else:
            for index in cutlass.range_constexpr(RESULTS):
                if token + index < time:
                    advance(cursor, token + index)
                    end = cutlass.min(cursor.end, time)
                    for lag in cutlass.range(cutlass.min(Int32(width), end - (token + index)), unroll=1):
                        grad = read(spec, source.dtype, at(source, row, channel, token + index + lag), 1)[0]
                        factor = read(spec, weight.element_type, column(weight, channel, width - 1 - lag), 1)[0]
                        fill(totals, index, [totals[index] + grad * factor])
                    if cutlass.const_expr(d_final is not None):
                        left = cursor.end - 1 - (token + index)
                        if left <= width - 2:
                            lane = cutlass.min(cutlass.max(width - 2 - left, Int32(0)), Int32(width - 2))
                            more = read_states(spec, d_final, cursor.sequence, channel, lane, 1)
                            fill(totals, index, [totals[index] + more[0]])
        for index in cutlass.range_constexpr(RESULTS):
            if token + index < time:
                write(spec, target.dtype, at(target, row, channel, token + index), [totals[index]])


class _LongSums:
    """Partial sums of dweight and dbias: a thread for each channel, tap and stretch of time."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    @cute.jit
    def launch(self, stream: cuda.CUstream, x: Any, offsets: Any, initial: Any, dz: Any, partial: Any) -> None:
        columns = Int32(partial.shape[1]) * Int32(partial.shape[2])
        blocks = ceil_div(columns, THREADS)
        self.kernel(x, offsets, initial, dz, partial, columns, blocks).launch(
            grid=(blocks * Int32(partial.shape[0]), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        offsets: Any,
        initial: Any,
        dz: cute.Tensor,
        partial: cute.Tensor,
        columns: Int32,
        blocks: Int32,
    ) -> None:
        spec, taps = self.spec, self.spec.width + 1
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        part = block // blocks
        index = (block - part * blocks) * THREADS + thread
        # Neighbouring threads read neighbouring addresses: channels, or along time the samples of neighbouring taps.
        if cutlass.const_expr(spec.major == "channels"):
            tap = index // Int32(partial.shape[2])
            channel = index - tap * Int32(partial.shape[2])
        else:
            channel = index // taps
            tap = index - channel * taps
        if index < columns:
            self.total(x, offsets, initial, dz, partial, part, channel, tap)

    @cute.jit
    def total(
        self, x: Any, offsets: Any, initial: Any, dz: Any, partial: Any, part: Int32, channel: Int32, tap: Int32
    ) -> None:
        spec, width = self.spec, self.spec.width
        batch, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BT")
        chunks = Int32(partial.shape[0]) // batch
        chunk = ceil_div(time, chunks)
        row = part // chunks
        first = cutlass.min((part - row * chunks) * chunk, time)
        source, grads = sequence_view(x, spec), sequence_view(dz, spec)
        cursor = Cursor(spec.packed, offsets, row, time)
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
                elif cutlass.const_expr(initial is not None):
                    lane = cutlass.max(width - 1 - lag + position, Int32(0))
                    held = read_states(spec, initial, cursor.sequence, channel, lane, 1)[0]
                    fill(total, 0, [total[0] + grad * held])
        place = view(partial, (0, 1, 2))
        write(spec, place.dtype, at(place, part, tap, channel), [total[0]])


class _LongInitial:
    """The initial states' gradient from dz: a thread for each sequence, channel and lane."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    @cute.jit
    def launch(self, stream: cuda.CUstream, weight: Any, offsets: Any, dz: Any, d_final: Any, d_initial: Any) -> None:
        columns = Int32(d_initial.shape[1]) * (self.spec.width - 1)
        blocks = ceil_div(columns, THREADS)
        self.kernel(weight, offsets, dz, d_final, d_initial, columns, blocks).launch(
            grid=(blocks * Int32(d_initial.shape[0]), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        weight: cute.Tensor,
        offsets: Any,
        dz: cute.Tensor,
        d_final: Any,
        d_initial: cute.Tensor,
        columns: Int32,
        blocks: Int32,
    ) -> None:
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sequence = block // blocks
        index = (block - sequence * blocks) * THREADS + thread
        lane = index // Int32(d_initial.shape[1])
        channel = index - lane * Int32(d_initial.shape[1])
        time = Int32(dz.shape[spec.layout.index("T")])
        row, start, end = sequence, Int32(0), time
        if cutlass.const_expr(spec.packed):
            row = Int32(0)
            end = cutlass.max(cutlass.min(Int32(offsets[sequence + 1]), time), Int32(0))
            start = cutlass.max(cutlass.min(Int32(offsets[sequence]), end), Int32(0))
        if index < columns:
            grads, target = sequence_view(dz, spec), states_view(d_initial)
            total = cute.make_rmem_tensor(1, wide_type(spec.x_dtype))
            fill(total, 0, zeros(spec, 1))
            for position in cutlass.range(cutlass.min(lane + 1, end - start), unroll=1):
                grad = read(spec, grads.dtype, at(grads, row, channel, start + position), 1)[0]
                factor = read(spec, weight.element_type, column(weight, channel, lane - position), 1)[0]
                fill(total, 0, [total[0] + grad * factor])
            if cutlass.const_expr(d_final is not None):
                if lane >= end - start:
                    more = read_states(spec, d_final, sequence, channel, lane - (end - start), 1)
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
        self.slopes.launch(stream, t.x, t.weight, t.bias, t.offsets, t.initial, t.dy, t.dz)
        self.gradient.launch(stream, t.weight, t.offsets, t.d_final, t.dz, t.dx)
        self.sums.launch(stream, t.x, t.offsets, t.initial, t.dz, t.partial)
        self.total.launch(stream, t.partial, t.dweight, t.dbias)
        if cutlass.const_expr(spec.initial):
            self.initial.launch(stream, t.weight, t.offsets, t.dz, t.d_final, t.d_initial)


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
