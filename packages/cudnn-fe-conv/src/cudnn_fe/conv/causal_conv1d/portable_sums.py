"""dweight and dbias from partial sums, and the gradient of the initial states."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_channels import load_parameters
from cudnn_fe.conv.portable_parts import (
    THREADS,
    at,
    ceil_div,
    column,
    fill,
    read,
    read_states,
    sequence_view,
    slope,
    states_view,
    view,
    wide_type,
    write,
    zeros,
)

__all__ = ["InitialGradient", "SumPartials"]

_COLUMNS, _GROUPS, _UNROLL = 32, 8, 4


class SumPartials:
    """Adds (parts, W+1, D) over its parts: groups of rows first, then the groups, always in the same order."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    @cute.jit
    def launch(self, stream: cuda.CUstream, partial: Any, dweight: Any, dbias: Any) -> None:
        """Fill dweight (D, W) and, where there is one, dbias (D,)."""
        columns = (self.spec.width + (0 if dbias is None else 1)) * Int32(partial.shape[2])
        grid = (ceil_div(columns, _COLUMNS), 1, 1)
        self.kernel(partial, dweight, dbias, columns).launch(grid=grid, block=(_COLUMNS * _GROUPS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, partial: cute.Tensor, dweight: cute.Tensor, dbias: Any, columns: Int32) -> None:
        """Thirty-two columns of one block."""
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        shared = SmemAllocator().allocate_tensor(wide_type(spec.x_dtype), cute.make_layout(_COLUMNS * _GROUPS), 16)
        parts, channels = Int32(partial.shape[0]), Int32(partial.shape[2])
        group, index = thread // _COLUMNS, block * _COLUMNS + thread % _COLUMNS
        tap = cutlass.min(index, columns - 1) // channels
        channel = cutlass.min(index, columns - 1) - tap * channels
        place = view(partial, (0, 1, 2))
        start, step = at(place, group, tap, channel), place.strides[0] * _GROUPS
        mine = cutlass.max((parts - group + _GROUPS - 1) // _GROUPS, Int32(0))
        total = cute.make_rmem_tensor(1, wide_type(spec.x_dtype))
        fill(total, 0, zeros(spec, 1))
        for turn in cutlass.range(mine // _UNROLL, unroll=1):
            base = start + turn * _UNROLL * step
            terms = [read(spec, place.dtype, base + part * step, 1)[0] for part in range(_UNROLL)]
            fill(total, 0, [total[0] + ((terms[0] + terms[1]) + (terms[2] + terms[3]))])
        for turn in cutlass.range(mine // _UNROLL * _UNROLL, mine, unroll=1):
            fill(total, 0, [total[0] + read(spec, place.dtype, start + turn * step, 1)[0]])
        shared[thread] = total[0]
        cute.arch.barrier()
        if group == 0 and index < columns:
            result = shared[thread]
            for other in cutlass.range_constexpr(1, _GROUPS):
                result += shared[thread + other * _COLUMNS]
            if tap < spec.width:
                write(spec, dweight.element_type, column(dweight, channel, tap), [result])
            elif cutlass.const_expr(dbias is not None):
                write(spec, dbias.element_type, column(dbias, channel), [result])


class InitialGradient:
    """One thread for each sequence and channel: dz of its first W-1 tokens anew, and final lanes that were initial."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

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
        d_initial: Any,
    ) -> None:
        """Fill d_initial (S, D, W-1)."""
        blocks = ceil_div(Int32(d_initial.shape[1]), THREADS)
        self.kernel(x, weight, bias, offsets, initial, dy, d_final, d_initial, blocks).launch(
            grid=(blocks * Int32(d_initial.shape[0]), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        bias: Any,
        offsets: Any,
        initial: cute.Tensor,
        dy: cute.Tensor,
        d_final: Any,
        d_initial: cute.Tensor,
        blocks: Int32,
    ) -> None:
        """Channels of one sequence."""
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sequence = block // blocks
        channel = (block - sequence * blocks) * THREADS + thread
        time = Int32(x.shape[spec.layout.index("T")])
        row, start, end = sequence, Int32(0), time
        if cutlass.const_expr(spec.packed):
            row = Int32(0)
            # Bad offsets trap elsewhere; here they must not become bad addresses.
            end = cutlass.max(cutlass.min(Int32(offsets[sequence + 1]), time), Int32(0))
            start = cutlass.max(cutlass.min(Int32(offsets[sequence]), end), Int32(0))
        if channel < Int32(d_initial.shape[1]):
            self.lanes_of(x, weight, bias, initial, dy, d_final, d_initial, sequence, row, channel, start, end - start)

    @cute.jit
    def lanes_of(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        initial: Any,
        dy: Any,
        d_final: Any,
        d_initial: Any,
        sequence: Int32,
        row: Int32,
        channel: Int32,
        start: Int32,
        length: Int32,
    ) -> None:
        """All lanes of one sequence and channel."""
        spec, lanes = self.spec, self.spec.width - 1
        source, upstream, target = sequence_view(x, spec), sequence_view(dy, spec), states_view(d_initial)
        rows, shifts = load_parameters(spec, weight, bias, channel, 1)
        taps, shift = [tap[0] for tap in rows], None if shifts is None else shifts[0]
        totals = cute.make_rmem_tensor(lanes, wide_type(spec.x_dtype))
        fill(totals, 0, zeros(spec, lanes))
        for position in cutlass.range_constexpr(lanes):
            if position < length:
                # Lanes position..W-2 of the initial state, then the sequence's own samples.
                samples = [read_states(spec, initial, sequence, channel, lane, 1)[0] for lane in range(position, lanes)]
                for own in cutlass.range_constexpr(position + 1):
                    samples.append(read(spec, source.dtype, at(source, row, channel, start + own), 1)[0])
                dz = read(spec, upstream.dtype, at(upstream, row, channel, start + position), 1)[0]
                if cutlass.const_expr(spec.silu):
                    z = samples[0] * taps[0]
                    for sample, tap in zip(samples[1:], taps[1:], strict=True):
                        z += sample * tap
                    dz = dz * slope(z if shift is None else z + shift)
                for lane in cutlass.range_constexpr(position, lanes):
                    fill(totals, lane, [totals[lane] + dz * taps[lane - position]])
        for lane in cutlass.range_constexpr(lanes):
            if cutlass.const_expr(d_final is not None):
                if lane >= length:
                    more = read_states(spec, d_final, sequence, channel, lane - length, 1)[0]
                    fill(totals, lane, [totals[lane] + more])
            write(spec, target.dtype, at(target, sequence, channel, lane), [totals[lane]])
