"""dx and partial sums of dweight and dbias with vectors along time.

A warp walks its stretch from the end to the beginning: dx of a vector needs the dz of the W-1 tokens after it, which
the neighbouring lane has, or has had a turn before. Sums over time stay in registers until a warp adds its lanes' in
a fixed order.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.portable_ahead import Ahead, History, arrived, history_of, widen_words
from cudnn_fe.conv.causal_conv1d.portable_cursor import Cursor, advance, copy_cursor, seek
from cudnn_fe.conv.causal_conv1d.portable_starts import (
    blocked_after,
    blocked_before,
    starts_around,
    unless_blocked,
)
from cudnn_fe.conv.causal_conv1d.portable_time import (
    TimeWalk,
    from_initial,
    masked_samples,
)
from cudnn_fe.conv.portable_parts import (
    at,
    ceil_div,
    dot,
    fill,
    load_parameters,
    read,
    read_states,
    registers,
    sequence_view,
    slope,
    view,
    write,
    zeros,
)

__all__ = ["TimeBackward", "token_slope"]


class TimeBackward(TimeWalk):
    """dx and the partial sums (batch * chunks, W+1, D)."""

    names = ("x", "weight", "bias", "offsets", "initial", "dy", "d_final", "dx", "partial", "starts")

    def chunks_of(self, t: SimpleNamespace, row_blocks: Any) -> Any:
        """As the partial sums have it."""
        return Int32(t.partial.shape[0]) // Int32(t.x.shape[0])

    @cute.jit
    def walk(
        self, t: Any, row: Int32, channel: Int32, first: Int32, stop: Int32, slot: Int32, live: cutlass.Boolean
    ) -> None:
        """Tokens ``first`` to ``stop`` of one channel, shared among the lanes."""
        spec, count, unroll, width = self.spec, self.spec.vector, self.spec.unroll, self.spec.width
        thread, _, _ = cute.arch.thread_idx()
        lane = thread % spec.lanes
        source, upstream = sequence_view(t.x, spec), sequence_view(t.dy, spec)
        own, above, before = Ahead(source, unroll, count), Ahead(upstream, unroll, count), History(spec, source)
        turns = ceil_div(stop - first, self.unit)
        if not live:
            stop = first
        begin = first + lane * count
        last = begin + (turns - 1) * self.unit
        self.fetch([own, above], before, [source, upstream], row, channel, last, stop)
        taps, shift = load_parameters(spec, t.weight, t.bias, channel, 1)
        cursor = Cursor(spec.packed, t.offsets, row, t.x.shape[spec.layout.index("T")])
        carried = registers(spec, width - 1)
        for k in cutlass.range_constexpr(width - 1):
            beyond = stop + (lane + 1 + k // count - spec.lanes) * count + k % count
            if beyond >= stop and beyond < cursor.time and stop > first:
                seek(cursor, beyond)
                dz_k = token_slope(spec, t, taps, shift, cursor.sequence, row, channel, beyond, beyond - cursor.start)
                fill(carried, k, [dz_k])
        if cutlass.const_expr(not spec.marked):
            seek(cursor, cutlass.max(cutlass.min(last, cursor.time - 1), Int32(0)))
        sums = registers(spec, width + 1)
        for turn in cutlass.range(turns, unroll=1):
            token = last - turn * self.unit
            words = [arrived(ahead) for ahead in (own, above, *before.ahead)]
            # Tokens before the chunk are read for nothing once.
            ahead_of = cutlass.max(token - self.unit, lane * count)
            self.fetch([own, above], before, [source, upstream], row, channel, ahead_of, stop)
            lines = [
                [*past, *vector]
                for past, vector in zip(
                    history_of(spec, before, words[2:]), widen_words(spec, own, words[0]), strict=True
                )
            ]
            grads = widen_words(spec, above, words[1])
            for step in cutlass.range_constexpr(unroll - 1, -1, -1):
                one = token + step * spec.lanes * count
                self.vector(t, taps, shift, cursor, lines[step], grads[step], sums, carried, row, channel, one, stop)
        for k in cutlass.range_constexpr(width + 1):
            total = sums[k]
            distance = spec.lanes // 2
            while cutlass.const_expr(distance > 0):
                total += cute.arch.shuffle_sync_bfly(total, distance)
                distance //= 2
            fill(sums, k, [total])
        if live and lane == 0:
            place = view(t.partial, (0, 1, 2))
            for k in cutlass.range_constexpr(width + 1):
                write(spec, place.dtype, at(place, slot, k, channel), [sums[k]])

    @cute.jit
    def vector(
        self,
        t: Any,
        taps: Any,
        shift: Any,
        cursor: Any,
        samples: Any,
        grads: Any,
        sums: Any,
        carried: Any,
        row: Int32,
        channel: Int32,
        token: Int32,
        stop: Int32,
    ) -> None:
        """One vector's part of the sums, and its dx."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        dz = registers(spec, count)
        ahead = Cursor(spec.packed, t.offsets, row, cursor.time)
        if cutlass.const_expr(not spec.packed):
            held = from_initial(spec, samples, t.initial, row, channel, token)
            for e in cutlass.range_constexpr(count):
                self.add(dz, sums, e, held[e : e + width], taps, shift, grads[e])
        elif cutlass.const_expr(spec.marked):
            bits = starts_around(t.starts, token, cursor.time, width)
            before, behind = blocked_before(bits, width), blocked_after(bits, width)
            for e in cutlass.range_constexpr(count):
                newest_first = unless_blocked(spec, before, e, samples[e : e + width][::-1])
                self.add(dz, sums, e, newest_first[::-1], taps, shift, grads[e])
        elif token < stop:
            if token < cursor.start or token >= cursor.end:
                seek(cursor, token)
            if token - cursor.start >= width - 1 and token + count <= cursor.end:
                for e in cutlass.range_constexpr(count):
                    self.add(dz, sums, e, samples[e : e + width], taps, shift, grads[e])
            else:
                copy_cursor(cursor, ahead)
                for e in cutlass.range_constexpr(count):
                    advance(ahead, token + e)
                    position = token + e - ahead.start
                    masked = masked_samples(spec, samples[e : e + width], position, ahead, t.initial, channel)
                    self.add(dz, sums, e, masked, taps, shift, grads[e])
        after = self.after(dz, carried)
        target = sequence_view(t.dx, spec)
        goal = at(target, row, channel, token)
        reach = [dz[e] for e in range(count)] + after
        lines = [reach[e : e + width] for e in range(count)]
        if cutlass.const_expr(spec.marked):
            lines = [unless_blocked(spec, behind, e, line) for e, line in enumerate(lines)]
        values = [self.gathered(line, taps) for line in lines]
        if cutlass.const_expr((spec.packed and not spec.marked) or (t.d_final is not None and width > 1)):
            if token < stop:
                if token + (count + width - 1) <= cursor.end:
                    write(spec, target.dtype, goal, values)
                else:
                    copy_cursor(cursor, ahead)
                    for e in cutlass.range_constexpr(count):
                        advance(ahead, token + e)
                        left = ahead.end - 1 - (token + e)
                        value = registers(spec, 1)
                        for lag in cutlass.range_constexpr(width):
                            term = reach[e + lag] * taps[width - 1 - lag][0]
                            fill(value, 0, [value[0] + cutlass.select_(left >= lag, term, zeros(spec, 1)[0])])
                        if cutlass.const_expr(t.d_final is not None and width > 1):
                            if left <= width - 2:
                                place = cutlass.min(cutlass.max(width - 2 - left, Int32(0)), Int32(width - 2))
                                more = read_states(spec, t.d_final, ahead.sequence, channel, place, 1)
                                fill(value, 0, [value[0] + more[0]])
                        write(spec, target.dtype, goal + e * target.strides[2], [value[0]])
        elif token < stop:
            write(spec, target.dtype, goal, values)

    def add(self, dz: Any, sums: Any, e: int, samples: list[Any], taps: Any, shift: Any, grad: Any) -> None:
        """dz of one token, and its terms of dweight, oldest tap first, and dbias."""
        dz[e] = _slope_of(samples, taps, shift, grad, self.spec.silu)
        for tap, sample in enumerate(samples):
            sums[tap] = sums[tap] + dz[e] * sample
        sums[len(samples)] = sums[len(samples)] + dz[e]

    def after(self, dz: Any, carried: Any) -> list[Any]:
        """dz of the W-1 tokens after each lane's vector: from lanes further on, or from the turn before."""
        lanes, count = self.spec.lanes, self.spec.vector
        thread, _, _ = cute.arch.thread_idx()
        lane, found = thread % lanes, []
        for k in range(self.spec.width - 1):
            distance = 1 + k // count
            turned = dz[k % count]
            if lanes > 1:
                source = (thread % 32) - lane + (lane + distance) % lanes
                turned = cute.arch.shuffle_sync(turned, source)
            found.append(cutlass.select_(lane + distance >= lanes, carried[k], turned))
            carried[k] = turned
        return found

    def gathered(self, dz: list[Any], taps: Any) -> Any:
        """dx of one token from dz of its own and the W-1 after it."""
        total = dz[0] * taps[-1][0]
        for lag in range(1, self.spec.width):
            total += dz[lag] * taps[-1 - lag][0]
        return total


def _slope_of(samples: list[Any], taps: Any, shift: Any, grad: Any, silu: bool) -> Any:
    return grad * slope(dot([[sample] for sample in samples], taps, shift)[0]) if silu else grad


@cute.jit
def token_slope(
    spec: cutlass.Constexpr,
    t: Any,
    taps: Any,
    shift: Any,
    sequence: Int32,
    row: Int32,
    channel: Int32,
    token: Int32,
    position: Int32,
) -> Any:
    """dz of one token of one channel, read from memory, at a position of its sequence."""
    source, upstream = sequence_view(t.x, spec), sequence_view(t.dy, spec)
    grad = read(spec, upstream.dtype, at(upstream, row, channel, token), 1)[0]
    if cutlass.const_expr(not spec.silu):
        return grad
    held = registers(spec, spec.width)
    for tap in cutlass.range_constexpr(spec.width):
        lag = spec.width - 1 - tap
        if position >= lag:
            fill(held, tap, read(spec, source.dtype, at(source, row, channel, token - lag), 1))
        elif cutlass.const_expr(t.initial is not None):
            lane = cutlass.max(spec.width - 1 - lag + position, Int32(0))
            fill(held, tap, read_states(spec, t.initial, sequence, channel, lane, 1))
    return _slope_of([held[tap] for tap in range(spec.width)], taps, shift, grad, True)
