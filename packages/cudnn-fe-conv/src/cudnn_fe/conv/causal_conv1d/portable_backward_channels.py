"""dx and partial sums of dweight and dbias with vectors along channels, in one walk over time.

Token t's dz reaches dx of the W-1 tokens before it, so a thread keeps their unfinished sums in registers, beside the
last W-1 samples, and finishes dx of token t-(W-1) at token t. A chunk ends with the dz of the next W-1 tokens, which
count for dx alone. Each thread writes its own partial sums: they are added later, in a fixed order.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.portable_ahead import Ahead, arrived, fetch, widen_words
from cudnn_fe.conv.causal_conv1d.portable_channels import ChannelsWalk, enter, fill_window
from cudnn_fe.conv.causal_conv1d.portable_cursor import Cursor, advance, seek
from cudnn_fe.conv.portable_parts import (
    at,
    dot,
    fill,
    keep_rows,
    load_parameters,
    read,
    read_states,
    registers,
    rows_of,
    sequence_view,
    slope,
    view,
    write,
    zeros,
)

__all__ = ["ChannelsBackward"]

Rows = list[list[Any]]


class ChannelsBackward(ChannelsWalk):
    """dx and the partial sums (batch * chunks, W+1, D)."""

    names = ("x", "weight", "bias", "offsets", "initial", "dy", "d_final", "dx", "partial")

    def chunks_of(self, t: SimpleNamespace, channel_blocks: Any) -> Any:
        """As the partial sums have it."""
        return Int32(t.partial.shape[0]) // Int32(t.x.shape[0])

    @cute.jit
    def walk(self, t: Any, row: Int32, channel: Int32, first: Int32, stop: Int32, slot: Int32) -> None:
        """Tokens ``first`` to ``stop`` of one vector of channels."""
        spec, count, width, unroll = self.spec, self.spec.vector, self.spec.width, self.spec.unroll
        time = Int32(t.x.shape[spec.layout.index("T")])
        source, upstream, target = (sequence_view(tensor, spec) for tensor in (t.x, t.dy, t.dx))
        ahead, above = Ahead(source, unroll, count), Ahead(upstream, unroll, count)
        if first + unroll <= stop:
            fetch(ahead, at(source, row, channel, first), source.strides[2])
            fetch(above, at(upstream, row, channel, first), upstream.strides[2])
        taps, shift = load_parameters(spec, t.weight, t.bias, channel, count)
        cursor, behind = (Cursor(spec.packed, t.offsets, row, time) for _ in range(2))
        seek(cursor, cutlass.min(first, time - 1))
        seek(behind, cutlass.min(first, time - 1))
        window, pending = (registers(spec, (width - 1) * count) for _ in range(2))
        sums = registers(spec, (width + 1) * count)
        fill_window(spec, window, cursor, source, t.initial, row, channel, first)
        for turn in cutlass.range((stop - first + unroll - 1) // unroll, unroll=1):
            token = first + turn * unroll
            enter(spec, window, cursor, source, t.initial, row, channel, token)
            words, words_above = arrived(ahead), arrived(above)
            # Past the chunk's end, for `finish`, too.
            if token + 2 * unroll <= time:
                fetch(ahead, at(source, row, channel, token + unroll), source.strides[2])
                fetch(above, at(upstream, row, channel, token + unroll), upstream.strides[2])
            if token + unroll <= cutlass.min(stop, cursor.end) and token - cursor.start >= width - 1:
                samples = [*rows_of(window, width - 1, count), *widen_words(spec, ahead, words)]
                grads = widen_words(spec, above, words_above)
                waiting, totals = rows_of(pending, width - 1, count), rows_of(sums, width + 1, count)
                goal = at(target, row, channel, token - (width - 1))
                for step in cutlass.range_constexpr(unroll):
                    held = samples[step : step + width]
                    dz = _slopes(held, taps, shift, grads[step], spec.silu)
                    totals = _added(totals, held, dz)
                    done, waiting = _spread(waiting, dz, taps)
                    if token + (step - (width - 1)) >= first:
                        write(spec, target.dtype, goal + step * target.strides[2], done)
                for kept, values in ((window, samples[unroll:]), (pending, waiting), (sums, totals)):
                    keep_rows(kept, values)
            else:
                for step in cutlass.range(cutlass.min(Int32(unroll), stop - token), unroll=1):
                    self.one(t, taps, shift, cursor, behind, window, pending, sums, row, channel, token + step, first)
        if stop > first:
            self.finish(t, taps, shift, cursor, behind, window, pending, ahead, above, row, channel, first, stop)
        place = view(t.partial, (0, 1, 2))
        for k in cutlass.range_constexpr(width + 1):
            write(spec, place.dtype, at(place, slot, k, channel), rows_of(sums, width + 1, count)[k])

    @cute.jit
    def one(
        self,
        t: Any,
        taps: Any,
        shift: Any,
        cursor: Any,
        behind: Any,
        window: Any,
        pending: Any,
        sums: Any,
        row: Int32,
        channel: Int32,
        token: Int32,
        first: Int32,
    ) -> None:
        """One token beside a sequence's beginning or end; its sums count unless they are None."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        source, upstream = sequence_view(t.x, spec), sequence_view(t.dy, spec)
        enter(spec, window, cursor, source, t.initial, row, channel, token)
        held = rows_of(window, width - 1, count)
        held.append(read(spec, source.dtype, at(source, row, channel, token), count))
        grad = read(spec, upstream.dtype, at(upstream, row, channel, token), count)
        dz = _slopes(held, taps, shift, grad, spec.silu)
        if cutlass.const_expr(sums is not None):
            keep_rows(sums, _added(rows_of(sums, width + 1, count), held, dz))
        shares = registers(spec, width * count)
        for lag in cutlass.range_constexpr(width):
            if token - cursor.start >= lag:
                fill(shares, lag * count, [dz[i] * taps[width - 1 - lag][i] for i in range(count)])
        finished = registers(spec, count)
        oldest = [*rows_of(pending, width - 1, count), zeros(spec, count)]
        fill(finished, 0, [oldest[0][i] + shares[(width - 1) * count + i] for i in range(count)])
        for k in cutlass.range_constexpr(width - 1):
            lag = width - 2 - k
            fill(pending, k * count, [oldest[k + 1][i] + shares[lag * count + i] for i in range(count)])
        keep_rows(window, held[1:])
        self.emit(t, finished, behind, row, channel, token - (width - 1), first)

    @cute.jit
    def finish(
        self,
        t: Any,
        taps: Any,
        shift: Any,
        cursor: Any,
        behind: Any,
        window: Any,
        pending: Any,
        ahead: Any,
        above: Any,
        row: Int32,
        channel: Int32,
        first: Int32,
        stop: Int32,
    ) -> None:
        """dx of the last W-1 tokens, which the dz of the W-1 tokens behind the chunk, fetched by now, reach too."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        more = width - 1
        if cutlass.const_expr(more > 0):
            # Of wider filters, not enough was fetched.
            enough = cutlass.const_expr(more <= spec.unroll)
            if enough and stop + spec.unroll <= cursor.end and stop - cursor.start >= more and stop - first >= more:
                target = sequence_view(t.dx, spec)
                samples = [*rows_of(window, more, count), *widen_words(spec, ahead, arrived(ahead))]
                grads = widen_words(spec, above, arrived(above))
                waiting = rows_of(pending, more, count)
                for step in cutlass.range_constexpr(min(more, spec.unroll)):
                    dz = _slopes(samples[step : step + width], taps, shift, grads[step], spec.silu)
                    done, waiting = _spread(waiting, dz, taps)
                    write(spec, target.dtype, at(target, row, channel, stop - more + step), done)
            else:
                last = cutlass.min(stop + more, cursor.time)
                for token in cutlass.range(stop, last, unroll=1):
                    self.one(t, taps, shift, cursor, behind, window, pending, None, row, channel, token, first)
                for k in cutlass.range_constexpr(more):
                    token_k = last - more + k
                    if token_k < stop:
                        rest = registers(spec, count)
                        fill(rest, 0, [pending[k * count + i] for i in range(count)])
                        self.emit(t, rest, behind, row, channel, token_k, first)

    @cute.jit
    def emit(self, t: Any, values: Any, behind: Any, row: Int32, channel: Int32, token: Int32, first: Int32) -> None:
        """Store dx of a token of this chunk, with what reaches it through the final states."""
        spec, count, last = self.spec, self.spec.vector, self.spec.width - 2
        if token >= first:
            if cutlass.const_expr(t.d_final is not None and last >= 0):
                advance(behind, token)
                left = behind.end - 1 - token
                if left <= last:
                    lane = cutlass.min(cutlass.max(last - left, Int32(0)), Int32(last))
                    more = read_states(spec, t.d_final, behind.sequence, channel, lane, count)
                    fill(values, 0, [values[i] + more[i] for i in range(count)])
            target = sequence_view(t.dx, spec)
            write(spec, target.dtype, at(target, row, channel, token), [values[i] for i in range(count)])


def _spread(waiting: Rows, dz: list[Any], taps: Rows) -> tuple[list[Any], Rows]:
    """dx that a token's dz finishes, and what the W-1 tokens after it wait for."""
    many, channels = len(waiting), range(len(dz))
    grown = [[waiting[k][i] + dz[i] * taps[k][i] for i in channels] for k in range(many)]
    grown.append([dz[i] * taps[many][i] for i in channels])
    return grown[0], grown[1:]


def _added(totals: Rows, samples: Rows, dz: list[Any]) -> Rows:
    """Sums of dweight, oldest tap first, and dbias with one token's terms."""
    pairs = zip(totals[:-1], samples, strict=True)
    grown = [[total[i] + dz[i] * sample[i] for i in range(len(dz))] for total, sample in pairs]
    return [*grown, [totals[-1][i] + dz[i] for i in range(len(dz))]]


def _slopes(samples: Rows, taps: Rows, shift: Any, upstream: list[Any], silu: bool) -> list[Any]:
    """dz of one token from its W samples and dy."""
    if not silu:
        return upstream
    return [grad * slope(z) for grad, z in zip(upstream, dot(samples, taps, shift), strict=True)]
