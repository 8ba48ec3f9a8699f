"""One decoding step on any GPU from SM80 up: a thread for each row and vector of channels, which it reads, filters and
moves on alone.

The states move bit for bit. Where the state's result has memory of its own, the whole cache is copied there first.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute

from cudnn_fe.conv.causal_conv1d_update.kernel_spec import UpdateSpec
from cudnn_fe.conv.portable_parts import (
    activated,
    at,
    ceil_div,
    column,
    dot,
    fake,
    fill,
    load_shift,
    load_taps,
    put,
    raw,
    read,
    states_view,
    wide_type,
    widen,
    write,
    zeros,
)
from cudnn_fe.core.cute.arguments import named
from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128
_FEW = 16  # taps or lanes that are unrolled


class _Update:
    def __init__(self, spec: UpdateSpec) -> None:
        self.spec = spec

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        t = named([(name, present) for name, present, _, _ in _operands(self.spec)], tensors)
        slots, channels = Int32(t.after.shape[0]), Int32(t.after.shape[1])
        if t.after.iterator.toint() != t.state.iterator.toint():
            self.copy(t.state, t.after).launch(
                grid=(ceil_div(slots * channels, _THREADS), 1, 1), block=(_THREADS, 1, 1), stream=stream
            )
        blocks = ceil_div(channels, _THREADS * self.spec.vector)
        self.kernel(t.x, t.after, t.weight, t.bias, t.seen, t.indices, t.y, blocks).launch(
            grid=(blocks * Int32(t.x.shape[0]), 1, 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def copy(self, state: cute.Tensor, after: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        item, channels = block * _THREADS + thread, Int32(after.shape[1])
        slot = item // channels
        if slot < Int32(after.shape[0]):
            source, target = states_view(state), states_view(after)
            for lane in cutlass.range(Int32(after.shape[2]), unroll=4):
                element = raw(source.dtype, at(source, slot, item - slot * channels, lane), 1)
                put(target.dtype, at(target, slot, item - slot * channels, lane), element, 1)

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        state: cute.Tensor,
        weight: cute.Tensor,
        bias: Any,
        seen: Any,
        indices: Any,
        y: cute.Tensor,
        blocks: Int32,
    ) -> None:
        spec = self.spec
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block // blocks
        channel = ((block - row * blocks) * _THREADS + thread) * spec.vector
        slot = row
        if cutlass.const_expr(spec.indexed):
            slot = Int32(indices[row])
            self.check(indices, row, slot, Int32(state.shape[0]))
        if channel < Int32(y.shape[1]):
            if slot >= 0:
                turned = Int32(0)
                if cutlass.const_expr(spec.ring):
                    turned = _modulo(Int32(seen[row]), spec.lanes)
                self.step(x, state, weight, bias, y, row, slot, channel, turned)
            else:
                write(spec, y.element_type, column(y, row, channel), zeros(spec, spec.vector))

    @cute.jit
    def check(self, indices: Any, row: Int32, slot: Int32, slots: Int32) -> None:
        """Trap where a row's slot does not exist or is another row's too."""
        thread, _, _ = cute.arch.thread_idx()
        rows = Int32(indices.shape[0])
        bad = slot < -1 or slot >= slots
        for turn in cutlass.range(ceil_div(rows, _THREADS), unroll=1):
            other = cutlass.min(thread + turn * _THREADS, rows - 1)
            bad = bad or (slot >= 0 and other != row and Int32(indices[other]) == slot)
        if bad:
            assemble("trap;", [], [])

    @cute.jit
    def step(
        self,
        x: Any,
        state: Any,
        weight: Any,
        bias: Any,
        y: Any,
        row: Int32,
        slot: Int32,
        channel: Int32,
        turned: Int32,
    ) -> None:
        """One vector of channels of one row."""
        spec, count, width, lanes = self.spec, self.spec.vector, self.spec.width, self.spec.lanes
        held = states_view(state)
        newest = raw(x.element_type, column(x, row, channel), count)
        totals = cute.make_rmem_tensor(count, wide_type(spec.x_dtype))
        # Before the first store: behind one, which waits for the states, no load can be moved up.
        shift = load_shift(spec, bias, channel, count)
        if cutlass.const_expr(max(width, lanes) <= _FEW):
            taps = load_taps(spec, weight, channel, count)
            if cutlass.const_expr(spec.whole_states):
                samples = _shifted(spec, held.dtype, at(held, slot, channel, 0), newest)
            elif cutlass.const_expr(spec.ring):
                places = [_modulo(turned - (width - 1 - tap), lanes) for tap in range(width - 1)]
                samples = [raw(held.dtype, at(held, slot, channel, place), count) for place in places]
            else:
                samples = [raw(held.dtype, at(held, slot, channel, lane), count) for lane in range(lanes)]
            history = [widen(spec, sample, count) for sample in [*samples, newest]][-width:]
            fill(totals, 0, dot(history, taps, shift))
            if cutlass.const_expr(not spec.ring and not spec.whole_states):
                for lane in cutlass.range_constexpr(lanes - 1):
                    put(held.dtype, at(held, slot, channel, lane), samples[lane + 1], count)
        else:
            fill(totals, 0, zeros(spec, count) if shift is None else shift)
            for tap in cutlass.range(width - 1, unroll=4):
                lane = lanes - (width - 1) + tap
                if cutlass.const_expr(spec.ring):
                    lane = _modulo(turned - (width - 1 - tap), lanes)
                sample = read(spec, held.dtype, at(held, slot, channel, lane), 1)[0]
                factor = read(spec, weight.element_type, column(weight, channel, tap), 1)[0]
                fill(totals, 0, [totals[0] + sample * factor])
            last = read(spec, weight.element_type, column(weight, channel, width - 1), 1)[0]
            fill(totals, 0, [totals[0] + widen(spec, newest, 1)[0] * last])
            if cutlass.const_expr(not spec.ring):
                for lane in cutlass.range(lanes - 1, unroll=1):
                    moved = raw(held.dtype, at(held, slot, channel, lane + 1), 1)
                    put(held.dtype, at(held, slot, channel, lane), moved, 1)
        if cutlass.const_expr(lanes > 0 and not spec.whole_states):
            goal = turned if spec.ring else Int32(lanes - 1)
            put(held.dtype, at(held, slot, channel, goal), newest, count)
        values = [activated(totals[i], spec.silu) for i in range(count)]
        write(spec, y.element_type, column(y, row, channel), values)


def _shifted(spec: UpdateSpec, dtype: Any, address: Any, newest: Any) -> list[Any]:
    """Shift the states of a vector of channels, one piece of memory; returns each lane's samples from before."""
    count, lanes = spec.vector, spec.lanes
    before, after = (cute.make_rmem_tensor(count * lanes, dtype) for _ in range(2))
    before.store(raw(dtype, address, count * lanes))
    fresh, samples = cute.make_rmem_tensor(count, dtype), []
    fresh.store(newest)
    for lane in range(lanes):
        sample = cute.make_rmem_tensor(count, dtype)
        fill(sample, 0, [before[i * lanes + lane] for i in range(count)])
        samples.append(sample.load())
        for i in range(count):
            after[i * lanes + lane] = before[i * lanes + lane + 1] if lane + 1 < lanes else fresh[i]
    put(dtype, address, after.load(), count * lanes)
    return samples


def _modulo(value: Any, divisor: int) -> Any:
    """The remainder from 0 on, also of negative values."""
    rest = value % divisor
    return rest + Int32(rest < 0) * divisor  # nothing to add where the remainder has the divisor's sign already


def _operands(spec: UpdateSpec) -> list[tuple[str, bool, str, int]]:
    """Name, whether it comes along, element type and rank of each tensor in the launcher's order."""
    return [
        ("x", True, spec.x_dtype, 2),
        ("state", True, spec.x_dtype, 3),
        ("weight", True, spec.weight_dtype, 2),
        ("bias", spec.bias_dtype is not None, spec.bias_dtype or "", 1),
        ("seen", spec.ring, "int32", 1),
        ("indices", spec.indexed, "int32", 1),
        ("y", True, spec.x_dtype, 2),
        ("after", True, spec.x_dtype, 3),
    ]


def launcher(spec: UpdateSpec) -> Any:
    """The host function ``launch(stream, x, conv_state, weight[, bias][, seen][, indices], y, state after)``.

    Args:
        spec: What to compile for.
    """
    return _Update(spec)


def fake_arguments(spec: UpdateSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    return tuple(fake(kind, rank) for _, present, kind, rank in _operands(spec) if present)
