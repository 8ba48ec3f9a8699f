"""The forward convolution for more taps than registers hold: a thread makes eight results of one channel.

It walks the taps, oldest first, over a window of samples that moves on by one for each, so a tap costs one load of a
sample for eight products.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.causal_conv1d.portable import operands
from cudnn_fe.conv.causal_conv1d.portable_cursor import Cursor, advance, check_offsets, seek
from cudnn_fe.conv.causal_conv1d.portable_states import FinalStates
from cudnn_fe.conv.portable_parts import (
    THREADS,
    activated,
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
    slope,
    wide_type,
    write,
    zeros,
)
from cudnn_fe.core.cute.arguments import named

__all__ = ["RESULTS", "LongFilter", "fake_arguments", "launcher", "locate"]

_NAMES = ("x", "weight", "bias", "offsets", "initial", "dy", "target")
RESULTS = 8  # neighbours in time that one thread makes


class LongFilter:
    """y, or dz where the gradient of y comes along."""

    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    def launch(self, stream: cuda.CUstream, t: SimpleNamespace, target: Any) -> None:
        """Fill y, or dz from dy."""
        blocks, inner = grid_of(self.spec, t.x)
        tensors = (*picked(t, _NAMES[:-1]), target)
        self.kernel(inner, tensors).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, inner: Int32, tensors: Any) -> None:
        """Eight results of each thread."""
        spec, t = self.spec, bundle(_NAMES, tensors)
        block, _, _ = cute.arch.block_idx()
        time = Int32(t.x.shape[spec.layout.index("T")])
        if cutlass.const_expr(spec.packed):
            if block == 0:
                check_offsets(t.offsets, time)
        row, channel, token = locate(spec, t.x, inner)
        if token < time and channel < Int32(t.x.shape[spec.layout.index("D")]):
            self.filter(t, row, channel, token, time)

    @cute.jit
    def filter(self, t: Any, row: Int32, channel: Int32, token: Int32, time: Int32) -> None:
        """Results from ``token`` on."""
        spec, width = self.spec, self.spec.width
        source, goal = sequence_view(t.x, spec), sequence_view(t.target, spec)
        totals = cute.make_rmem_tensor(RESULTS, wide_type(spec.x_dtype))
        fill(totals, 0, zeros(spec, RESULTS))
        cursor = Cursor(spec.packed, t.offsets, row, time)
        seek(cursor, token)
        if token - cursor.start >= width - 1 and token + RESULTS <= cursor.end:
            window = cute.make_rmem_tensor(RESULTS, wide_type(spec.x_dtype))
            for index in cutlass.range_constexpr(RESULTS - 1):
                fill(window, index, read(spec, source.dtype, at(source, row, channel, token - width + 1 + index), 1))
            for tap in cutlass.range(width, unroll=8):
                newest = at(source, row, channel, token - width + tap + RESULTS)
                fill(window, RESULTS - 1, read(spec, source.dtype, newest, 1))
                factor = read(spec, t.weight.element_type, column(t.weight, channel, tap), 1)[0]
                fill(totals, 0, [totals[i] + window[i] * factor for i in range(RESULTS)])
                fill(window, 0, [window[i + 1] for i in range(RESULTS - 1)])
        else:
            for index in cutlass.range_constexpr(RESULTS):
                if token + index < time:
                    advance(cursor, token + index)
                    position = token + index - cursor.start
                    for tap in cutlass.range(width, unroll=1):
                        lag = width - 1 - tap
                        sample = cute.make_rmem_tensor(1, wide_type(spec.x_dtype))
                        fill(sample, 0, zeros(spec, 1))
                        if position >= lag:
                            place = at(source, row, channel, token + index - lag)
                            fill(sample, 0, read(spec, source.dtype, place, 1))
                        elif cutlass.const_expr(t.initial is not None):
                            lane = cutlass.max(width - 1 - lag + position, Int32(0))
                            fill(sample, 0, read_states(spec, t.initial, cursor.sequence, channel, lane, 1))
                        factor = read(spec, t.weight.element_type, column(t.weight, channel, tap), 1)[0]
                        fill(totals, index, [totals[index] + sample[0] * factor])
        if cutlass.const_expr(t.bias is not None):
            shift = read(spec, t.bias.element_type, column(t.bias, channel), 1)[0]
            fill(totals, 0, [totals[i] + shift for i in range(RESULTS)])
        for index in cutlass.range_constexpr(RESULTS):
            if token + index < time:
                place = at(goal, row, channel, token + index)
                if cutlass.const_expr(t.dy is None):
                    write(spec, goal.dtype, place, [activated(totals[index], spec.silu)])
                else:
                    upstream = sequence_view(t.dy, spec)
                    grad = read(spec, upstream.dtype, at(upstream, row, channel, token + index), 1)[0]
                    if cutlass.const_expr(spec.silu):
                        grad = grad * slope(totals[index])
                    write(spec, goal.dtype, place, [grad])


def grid_of(spec: ConvSpec, x: Any) -> tuple[Any, Any]:
    """Number of blocks, and of blocks along the dim that threads lie along."""
    batch, channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "BDT")
    pieces = ceil_div(time, RESULTS)
    inner, outer = (channels, pieces) if spec.major == "channels" else (pieces, channels)
    blocks = ceil_div(inner, THREADS)
    return blocks * outer * batch, blocks


def locate(spec: ConvSpec, x: Any, inner: Any) -> tuple[Any, Any, Any]:
    """Row, channel and first token of a thread; threads past the end get ones that do not exist."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    channels, time = (Int32(x.shape[spec.layout.index(dim)]) for dim in "DT")
    rest = block // inner
    index = (block - rest * inner) * THREADS + thread
    outer = ceil_div(time, RESULTS) if spec.major == "channels" else channels
    row = rest // outer
    other = rest - row * outer
    if spec.major == "channels":
        return row, index, other * RESULTS
    return row, other, index * RESULTS


class _Forward:
    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec
        self.filter, self.states = LongFilter(spec), FinalStates(spec)

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        spec = self.spec
        t = named([(name, present) for name, present, _, _ in operands(spec)], tensors)
        self.filter.launch(stream, t, t.y)
        if cutlass.const_expr(spec.final):
            self.states.launch(stream, t.x, t.offsets, t.initial, t.final)


def launcher(spec: ConvSpec) -> Any:
    """The host function ``launch(stream, x, weight[, bias][, cu_seqlens][, initial_states], y[, final_states])``.

    Args:
        spec: What to compile for.
    """
    return _Forward(spec)


def fake_arguments(spec: ConvSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    return tuple(fake(kind, rank) for _, present, kind, rank in operands(spec) if present)
