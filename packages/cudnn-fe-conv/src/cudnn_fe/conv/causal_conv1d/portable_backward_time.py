"""dx and partial sums of dweight and dbias with vectors along time.

A thread finishes dx of its vector alone: it computes dz of the W-1 tokens after it as well, from samples that its
neighbour reads too. Sums over time stay in registers until a warp adds its lanes' in a fixed order.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_channels import load_parameters
from cudnn_fe.conv.causal_conv1d.portable_time import load_before, masked_sample, widen_before
from cudnn_fe.conv.portable_parts import (
    THREADS,
    Cursor,
    advance,
    at,
    ceil_div,
    check_offsets,
    fill,
    raw,
    read_states,
    seek,
    sequence_view,
    slope,
    view,
    wide_type,
    widen,
    write,
    zeros,
)

__all__ = ["TimeBackward"]


class TimeBackward:
    """The kernel for a spec."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.rows = THREADS // spec.lanes
        self.unit = spec.lanes * spec.vector

    @cute.jit
    def launch(
        self,
        stream: cuda.CUstream,
        x: Any,
        weight: Any,
        bias: Any,
        offsets: Any,
        initial: Any,
        dy: Any,
        d_final: Any,
        dx: Any,
        partial: Any,
    ) -> None:
        """Fill dx and the partial sums (batch * chunks, W+1, D)."""
        spec = self.spec
        batch, channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BDT")
        chunks = Int32(partial.shape[0]) // batch
        chunk = ceil_div(ceil_div(time, chunks), self.unit) * self.unit
        grid = (chunks * ceil_div(batch * channels, self.rows), 1, 1)
        self.kernel(x, weight, bias, offsets, initial, dy, d_final, dx, partial, chunk, chunks).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        bias: Any,
        offsets: Any,
        initial: Any,
        dy: cute.Tensor,
        d_final: Any,
        dx: cute.Tensor,
        partial: cute.Tensor,
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
        index = block - row_block * chunks
        line = row_block * self.rows + thread // spec.lanes
        live = line < batch * channels
        # Lanes past the last channel stay for the warp's sums, with no tokens of their own.
        line = cutlass.min(line, batch * channels - 1)
        row = line // channels
        channel = line - row * channels
        first = cutlass.min(index * chunk, time)
        stop = cutlass.min(first + chunk, time)
        if not live:
            stop = first
        sums = cute.make_rmem_tensor(spec.width + 1, wide_type(spec.x_dtype))
        fill(sums, 0, zeros(spec, spec.width + 1))
        self.walk(x, weight, bias, offsets, initial, dy, d_final, dx, sums, row, channel, first, stop)
        for k in cutlass.range_constexpr(spec.width + 1):
            total = sums[k]
            distance = spec.lanes // 2
            while cutlass.const_expr(distance > 0):
                total += cute.arch.shuffle_sync_bfly(total, distance)
                distance //= 2
            fill(sums, k, [total])
        if live and thread % spec.lanes == 0:
            place = view(partial, (0, 1, 2))
            for k in cutlass.range_constexpr(spec.width + 1):
                write(spec, place.dtype, at(place, row * chunks + index, k, channel), [sums[k]])

    @cute.jit
    def walk(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        offsets: Any,
        initial: Any,
        dy: Any,
        d_final: Any,
        dx: Any,
        sums: Any,
        row: Int32,
        channel: Int32,
        first: Int32,
        stop: Int32,
    ) -> None:
        """Tokens ``first`` to ``stop`` of one channel, shared among the lanes."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        thread, _, _ = cute.arch.thread_idx()
        time = Int32(x.shape[spec.layout.index("T")])
        source, upstream, target = (sequence_view(tensor, spec) for tensor in (x, dy, dx))
        rows, shifts = load_parameters(spec, weight, bias, channel, 1)
        taps, shift = [tap[0] for tap in rows], None if shifts is None else shifts[0]
        start = first + thread % spec.lanes * count
        cursor, ahead = Cursor(spec.packed, offsets, row, time), Cursor(spec.packed, offsets, row, time)
        seek(cursor, cutlass.min(start, time - 1))
        for turn in cutlass.range(ceil_div(stop - first, self.unit), unroll=1):
            token = start + turn * self.unit
            if token < stop:
                own = raw(source.dtype, at(source, row, channel, token), count)
                above = raw(upstream.dtype, at(upstream, row, channel, token), count)
                before = load_before(spec, source, row, channel, token)
                after = _load_after(spec, source, row, channel, token, time)
                above_after = _load_after(spec, upstream, row, channel, token, time)
                samples = widen_before(spec, before) + widen(spec, own, count) + _widen_after(spec, after)
                grads = widen(spec, above, count) + _widen_after(spec, above_after)
                advance(cursor, token)
                goal = at(target, row, channel, token)
                if token - cursor.start >= width - 1 and token + (count + width - 1) <= cursor.end:
                    dz = []
                    for e in cutlass.range_constexpr(count + width - 1):
                        dz.append(self.slope_of(samples[e : e + width], taps, shift, grads[e]))
                    values = []
                    for e in cutlass.range_constexpr(count):
                        total = dz[e] * taps[width - 1]
                        for lag in cutlass.range_constexpr(1, width):
                            total += dz[e + lag] * taps[width - 1 - lag]
                        values.append(total)
                        self.add(sums, samples[e : e + width], dz[e])
                    write(spec, target.dtype, goal, values)
                else:
                    copy_cursor(cursor, ahead)
                    self.edge(
                        samples,
                        grads,
                        taps,
                        shift,
                        ahead,
                        cursor,
                        initial,
                        d_final,
                        sums,
                        target,
                        channel,
                        token,
                        time,
                        goal,
                    )

    def slope_of(self, samples: list[Any], taps: list[Any], shift: Any, upstream: Any) -> Any:
        """dz of one token from its W samples and dy."""
        if not self.spec.silu:
            return upstream
        total = samples[0] * taps[0]
        for sample, tap in zip(samples[1:], taps[1:], strict=True):
            total += sample * tap
        return upstream * slope(total if shift is None else total + shift)

    def add(self, sums: Any, samples: list[Any], dz: Any) -> None:
        """One token's terms of dweight, oldest tap first, and dbias."""
        for tap, sample in enumerate(samples):
            sums[tap] = sums[tap] + dz * sample
        sums[len(samples)] = sums[len(samples)] + dz

    @cute.jit
    def edge(
        self,
        samples: Any,
        grads: Any,
        taps: Any,
        shift: Any,
        ahead: Any,
        cursor: Any,
        initial: Any,
        d_final: Any,
        sums: Any,
        target: Any,
        channel: Int32,
        token: Int32,
        time: Int32,
        goal: Any,
    ) -> None:
        """A vector beside a sequence's beginning or end, token by token."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        dz = cute.make_rmem_tensor(count + width - 1, wide_type(spec.x_dtype))
        positions = cute.make_rmem_tensor(count + width - 1, Int32)
        for e in cutlass.range_constexpr(count + width - 1):
            advance(ahead, token + e)
            position = token + e - ahead.start
            positions[e] = position
            held = [
                masked_sample(spec, samples[e + tap], width - 1 - tap, position, ahead, initial, channel)
                for tap in range(width)
            ]
            fill(dz, e, [self.slope_of(held, taps, shift, grads[e])])
            if token + e >= time:
                fill(dz, e, zeros(spec, 1))
            if cutlass.const_expr(e < count):
                self.add(sums, held, dz[e])
        value = cute.make_rmem_tensor(1, wide_type(spec.x_dtype))
        for e in cutlass.range_constexpr(count):
            fill(value, 0, [dz[e] * taps[width - 1]])
            for lag in cutlass.range_constexpr(1, width):
                if positions[e + lag] >= lag and token + (e + lag) < time:
                    fill(value, 0, [value[0] + dz[e + lag] * taps[width - 1 - lag]])
            if cutlass.const_expr(spec.final and width > 1):
                advance(cursor, token + e)
                left = cursor.end - 1 - (token + e)
                if left <= width - 2:
                    lane = cutlass.min(cutlass.max(width - 2 - left, Int32(0)), Int32(width - 2))
                    more = read_states(spec, d_final, cursor.sequence, channel, lane, 1)
                    fill(value, 0, [value[0] + more[0]])
            write(spec, target.dtype, goal + e * target.strides[2], [value[0]])


def copy_cursor(source: Any, target: Any) -> None:
    """Put one cursor where another stands."""
    for index in range(3):
        target.place[index] = source.place[index]


def _load_after(spec: ConvSpec, source: Any, row: Any, channel: Any, token: Any, time: Any) -> list[Any]:
    """The W-1 elements after a vector as loaded; at the end of a row some others, which nothing may use."""
    if spec.width == 1:
        return []
    if spec.vector >= spec.width - 1:
        place = cutlass.min(token + spec.vector, time - spec.vector)
        return [raw(source.dtype, at(source, row, channel, place), spec.vector)]
    places = [cutlass.min(token + spec.vector + step, time - 1) for step in range(spec.width - 1)]
    return [raw(source.dtype, at(source, row, channel, place), 1) for place in places]


def _widen_after(spec: ConvSpec, loaded: list[Any]) -> list[Any]:
    if len(loaded) == 1 and spec.vector >= spec.width - 1:
        return widen(spec, loaded[0], spec.vector)[: spec.width - 1]
    return [widen(spec, one, 1)[0] for one in loaded]
