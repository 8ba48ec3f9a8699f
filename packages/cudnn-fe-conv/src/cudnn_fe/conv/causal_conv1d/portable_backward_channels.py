"""dx and partial sums of dweight and dbias with vectors along channels, in one walk over time.

Token t's dz reaches dx of the W-1 tokens before it, so a thread keeps their unfinished sums in registers, beside the
last W-1 samples, and finishes dx of token t-(W-1) at token t. A chunk ends with the dz of the next W-1 tokens, which
count for dx alone. Each thread writes its own partial sums: they are added later, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_channels import fill_window, load_parameters
from cudnn_fe.conv.portable_parts import (
    THREADS,
    Cursor,
    advance,
    at,
    ceil_div,
    check_offsets,
    fill,
    raw,
    read,
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

__all__ = ["ChannelsBackward", "slopes"]

_UNROLL = 4  # tokens whose loads are in flight together


class ChannelsBackward:
    """The kernel for a spec."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.groups = THREADS // spec.lanes

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
        chunk = ceil_div(ceil_div(time, chunks), _UNROLL) * _UNROLL
        channel_blocks, chunk_blocks = ceil_div(channels, spec.vector * spec.lanes), ceil_div(chunks, self.groups)
        self.kernel(
            x, weight, bias, offsets, initial, dy, d_final, dx, partial, chunk, chunk_blocks, channel_blocks
        ).launch(grid=(channel_blocks * chunk_blocks * batch, 1, 1), block=(THREADS, 1, 1), stream=stream)

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
        chunk_blocks: Int32,
        channel_blocks: Int32,
    ) -> None:
        """One block: neighbouring vectors of channels, some chunks of time."""
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        batch, channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BDT")
        if cutlass.const_expr(spec.packed):
            if block == 0:
                check_offsets(offsets, time)
        rest = block // channel_blocks
        row = rest // chunk_blocks
        channel = ((block - rest * channel_blocks) * spec.lanes + thread % spec.lanes) * spec.vector
        index = (rest - row * chunk_blocks) * self.groups + thread // spec.lanes
        chunks = Int32(partial.shape[0]) // batch
        if channel < channels and index < chunks:
            # A chunk past the end has no tokens, and partial sums of zero.
            first = cutlass.min(index * chunk, time)
            stop = cutlass.min(first + chunk, time)
            slot = row * chunks + index
            self.walk(x, weight, bias, offsets, initial, dy, d_final, dx, partial, row, channel, first, stop, slot)

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
        partial: Any,
        row: Int32,
        channel: Int32,
        first: Int32,
        stop: Int32,
        slot: Int32,
    ) -> None:
        """Tokens ``first`` to ``stop`` of one vector of channels."""
        spec, count, width = self.spec, self.spec.vector, self.spec.width
        time = Int32(x.shape[spec.layout.index("T")])
        source, upstream, target = (sequence_view(tensor, spec) for tensor in (x, dy, dx))
        taps, shift = load_parameters(spec, weight, bias, channel, count)
        cursor, behind = Cursor(spec.packed, offsets, row, time), Cursor(spec.packed, offsets, row, time)
        seek(cursor, first)
        seek(behind, first)
        window, pending = (_registers(spec, max(width - 1, 1) * count) for _ in range(2))
        sums = _registers(spec, (width + 1) * count)
        fill_window(spec, window, cursor, source, initial, row, channel, first)
        last = cutlass.min(stop + (width - 1), time)
        for turn in cutlass.range(ceil_div(last - first, _UNROLL), unroll=1):
            token = first + turn * _UNROLL
            self.enter(window, cursor, source, initial, row, channel, token)
            if token + _UNROLL <= cutlass.min(stop, cursor.end) and token - cursor.start >= width - 1:
                start, over = at(source, row, channel, token), at(upstream, row, channel, token)
                loaded = [raw(source.dtype, start + step * source.strides[2], count) for step in range(_UNROLL)]
                above = [raw(upstream.dtype, over + step * upstream.strides[2], count) for step in range(_UNROLL)]
                samples, waiting = rows_of(window, width - 1, count), rows_of(pending, width - 1, count)
                totals = rows_of(sums, width + 1, count)
                goal = at(target, row, channel, token - (width - 1))
                for step in cutlass.range_constexpr(_UNROLL):
                    samples.append(widen(spec, loaded[step], count))
                    dz = slopes(samples[-width:], taps, shift, widen(spec, above[step], count), spec.silu)
                    totals = added(totals, samples[-width:], dz)
                    done = [[waiting[k][i] + dz[i] * taps[k][i] for i in range(count)] for k in range(width - 1)]
                    done.append([dz[i] * taps[width - 1][i] for i in range(count)])
                    waiting = done[1:]
                    if token + (step - (width - 1)) >= first:
                        write(spec, target.dtype, goal + step * target.strides[2], done[0])
                for kept, values in ((window, samples[_UNROLL:]), (pending, waiting), (sums, totals)):
                    keep_rows(kept, values)
            else:
                for step in cutlass.range(cutlass.min(Int32(_UNROLL), last - token), unroll=1):
                    one = token + step
                    self.enter(window, cursor, source, initial, row, channel, one)
                    held = rows_of(window, width - 1, count)
                    held.append(read(spec, source.dtype, at(source, row, channel, one), count))
                    above_one = read(spec, upstream.dtype, at(upstream, row, channel, one), count)
                    dz_one = slopes(held, taps, shift, above_one, spec.silu)
                    if one < stop:
                        keep_rows(sums, added(rows_of(sums, width + 1, count), held, dz_one))
                    shares = _registers(spec, width * count)
                    for lag in cutlass.range_constexpr(width):
                        if one - cursor.start >= lag:
                            fill(shares, lag * count, [dz_one[i] * taps[width - 1 - lag][i] for i in range(count)])
                    finished = _registers(spec, count)
                    oldest = rows_of(pending, width - 1, count)
                    oldest.append(zeros(spec, count))
                    fill(finished, 0, [oldest[0][i] + shares[(width - 1) * count + i] for i in range(count)])
                    for k in cutlass.range_constexpr(width - 1):
                        lag = width - 2 - k
                        fill(pending, k * count, [oldest[k + 1][i] + shares[lag * count + i] for i in range(count)])
                    keep_rows(window, held[1:])
                    self.emit(finished, target, d_final, behind, row, channel, one - (width - 1), first, stop)
        for k in cutlass.range_constexpr(width - 1):
            rest = _registers(spec, count)
            fill(rest, 0, [pending[k * count + i] for i in range(count)])
            self.emit(rest, target, d_final, behind, row, channel, last - (width - 1) + k, first, stop)
        place = view(partial, (0, 1, 2))
        for k in cutlass.range_constexpr(width + 1):
            values = [sums[k * count + i] for i in range(count)]
            write(spec, place.dtype, at(place, slot, k, channel), values)

    @cute.jit
    def enter(
        self, window: Any, cursor: Any, source: Any, initial: Any, row: Int32, channel: Int32, token: Int32
    ) -> None:
        """Start the window anew where a packed sequence begins."""
        if cutlass.const_expr(self.spec.packed):
            if token >= cursor.end:
                advance(cursor, token)
                fill_window(self.spec, window, cursor, source, initial, row, channel, token)

    @cute.jit
    def emit(
        self,
        values: Any,
        target: Any,
        d_final: Any,
        behind: Any,
        row: Int32,
        channel: Int32,
        token: Int32,
        first: Int32,
        stop: Int32,
    ) -> None:
        """Store dx of a token of this chunk, with what reaches it through the final states."""
        spec, count, last = self.spec, self.spec.vector, self.spec.width - 2
        if token >= first and token < stop:
            if cutlass.const_expr(spec.final and last >= 0):
                advance(behind, token)
                left = behind.end - 1 - token
                if left <= last:
                    lane = cutlass.max(last - left, Int32(0))
                    more = read_states(spec, d_final, behind.sequence, channel, cutlass.min(lane, Int32(last)), count)
                    fill(values, 0, [values[i] + more[i] for i in range(count)])
            write(spec, target.dtype, at(target, row, channel, token), [values[i] for i in range(count)])


def _registers(spec: ConvSpec, count: int) -> Any:
    registers = cute.make_rmem_tensor(count, wide_type(spec.x_dtype))
    fill(registers, 0, zeros(spec, count))
    return registers


def rows_of(registers: Any, rows: int, count: int) -> list[list[Any]]:
    """Registers as rows of ``count`` values."""
    return [[registers[row * count + i] for i in range(count)] for row in range(rows)]


def keep_rows(registers: Any, rows: list[list[Any]]) -> None:
    """Back from rows to registers."""
    for index, row in enumerate(rows):
        fill(registers, index * len(row), row)


def added(totals: list[list[Any]], samples: list[list[Any]], dz: list[Any]) -> list[list[Any]]:
    """Sums of dweight, oldest tap first, and dbias with one token's terms."""
    grown = [
        [total[i] + dz[i] * sample[i] for i in range(len(dz))]
        for total, sample in zip(totals[:-1], samples, strict=True)
    ]
    grown.append([totals[-1][i] + dz[i] for i in range(len(dz))])
    return grown


def slopes(samples: list[list[Any]], taps: list[list[Any]], shift: Any, upstream: list[Any], silu: bool) -> list[Any]:
    """dz of one token from its W samples and dy."""
    if not silu:
        return upstream
    values = []
    for i in range(len(upstream)):
        total = samples[0][i] * taps[0][i]
        for sample, tap in zip(samples[1:], taps[1:], strict=True):
            total += sample[i] * tap[i]
        values.append(upstream[i] * slope(total if shift is None else total + shift[i]))
    return values
