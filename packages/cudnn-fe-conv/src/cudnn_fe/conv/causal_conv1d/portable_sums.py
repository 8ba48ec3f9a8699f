"""dweight and dbias from partial sums, and the gradient of the initial states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_backward_time import token_slope
from cudnn_fe.conv.causal_conv1d.portable_cursor import span_of
from cudnn_fe.conv.portable_parts import (
    THREADS,
    at,
    bundle,
    ceil_div,
    column,
    fill,
    load_parameters,
    picked,
    read,
    read_states,
    registers,
    states_view,
    view,
    wide_type,
    write,
    zeros,
)

__all__ = ["InitialGradient", "SumPartials"]

_COLUMNS, _GROUPS, _UNROLL = 32, 8, 4
_INITIAL = ("x", "weight", "bias", "offsets", "initial", "dy", "d_final", "d_initial")


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

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace) -> None:
        """Fill d_initial (S, D, W-1)."""
        blocks = ceil_div(Int32(t.d_initial.shape[1]), THREADS)
        self.kernel(blocks, picked(t, _INITIAL)).launch(
            grid=(blocks * Int32(t.d_initial.shape[0]), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, blocks: Int32, tensors: Any) -> None:
        """Channels of one sequence."""
        spec = self.spec
        t = bundle(_INITIAL, tensors)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sequence = block // blocks
        channel = (block - sequence * blocks) * THREADS + thread
        row, start, end = span_of(spec, t.offsets, sequence, Int32(t.x.shape[spec.layout.index("T")]))
        if channel < Int32(t.d_initial.shape[1]):
            self.lanes_of(t, sequence, row, channel, start, end - start)

    @cute.jit
    def lanes_of(self, t: Any, sequence: Int32, row: Int32, channel: Int32, start: Int32, length: Int32) -> None:
        """All lanes of one sequence and channel."""
        spec, lanes, target = self.spec, self.spec.width - 1, states_view(t.d_initial)
        taps, shift = load_parameters(spec, t.weight, t.bias, channel, 1)
        totals = registers(spec, lanes)
        for position in cutlass.range_constexpr(lanes):
            if position < length:
                token = start + position
                dz = token_slope(spec, t, taps, shift, sequence, row, channel, token, Int32(position))
                for lane in cutlass.range_constexpr(position, lanes):
                    fill(totals, lane, [totals[lane] + dz * taps[lane - position][0]])
        for lane in cutlass.range_constexpr(lanes):
            if cutlass.const_expr(t.d_final is not None):
                if lane >= length:
                    more = read_states(spec, t.d_final, sequence, channel, lane - length, 1)[0]
                    fill(totals, lane, [totals[lane] + more])
            write(spec, target.dtype, at(target, sequence, channel, lane), [totals[lane]])
