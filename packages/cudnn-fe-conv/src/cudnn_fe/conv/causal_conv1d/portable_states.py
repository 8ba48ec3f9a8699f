"""Final states: the last W-1 samples of each sequence and of its initial state before it, moved bit for bit."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable_cursor import span_of
from cudnn_fe.conv.portable_parts import THREADS, at, ceil_div, put, raw, sequence_view, states_view, write, zeros

__all__ = ["FinalStates"]


class FinalStates:
    """One thread for each sequence and channel."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    @cute.jit
    def launch(self, stream: cuda.CUstream, x: Any, offsets: Any, initial: Any, final: Any) -> None:
        """Fill the final states (S, D, W-1)."""
        channels = ceil_div(Int32(final.shape[1]), THREADS)
        grid = (channels * Int32(final.shape[0]), 1, 1)
        self.kernel(x, offsets, initial, final, channels).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, offsets: Any, initial: Any, final: cute.Tensor, blocks: Int32) -> None:
        """Channels of one sequence."""
        spec, lanes = self.spec, self.spec.width - 1
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sequence = block // blocks
        channel = (block - sequence * blocks) * THREADS + thread
        time = Int32(x.shape[spec.layout.index("T")])
        row, start, end = span_of(spec, offsets, sequence, time)
        if channel < Int32(final.shape[1]):
            source, target = sequence_view(x, spec), states_view(final)
            for lane in cutlass.range(lanes, unroll=4):
                token = end - lanes + lane
                goal = at(target, sequence, channel, lane)
                if token >= start:
                    put(source.dtype, goal, raw(source.dtype, at(source, row, channel, token), 1), 1)
                elif cutlass.const_expr(initial is not None):
                    states = states_view(initial)
                    put(states.dtype, goal, raw(states.dtype, at(states, sequence, channel, lane + end - start), 1), 1)
                else:
                    write(spec, target.dtype, goal, zeros(spec, 1))
