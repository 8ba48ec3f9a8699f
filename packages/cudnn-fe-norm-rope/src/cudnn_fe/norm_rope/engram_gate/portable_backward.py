"""The engram gate's gradients: a block goes from token to token with all four streams of each.

The weight's gradient is added up in shared memory, every thread to words of its own; a second launch adds the blocks.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.column_sum import add_rows
from cudnn_fe.core.cute.exact import add, divide, multiply, square_root, subtract
from cudnn_fe.core.cute.ptx_base import load_shared, store_shared
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_floats, load_words, store_floats, store_words
from cudnn_fe.core.cute.small_floats import as_bits, as_float
from cudnn_fe.norm_rope.engram_gate.op import CHANNELS, STREAMS, GateSpec
from cudnn_fe.norm_rope.engram_gate.portable import _ROOT

__all__ = ["fake_arguments", "launcher"]

_THREADS = CHANNELS // VECTOR
_ROW = CHANNELS * 2
_PLANE = _THREADS * 16  # bytes of four floats of every thread
_FLOATS = STREAMS * 2 * _PLANE  # bytes of one float for every weight


class _Backward:
    def __init__(self, spec: GateSpec) -> None:
        self.shared_weights = spec.shared_weights
        self.groups = RowGroups(_THREADS, 1)

    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        x: cute.Tensor,
        kv: cute.Tensor,
        weight: cute.Tensor,
        saved: cute.Tensor,
        grad_out: cute.Tensor,
        grad_x: cute.Tensor,
        grad_kv: cute.Tensor,
        grad_weight: cute.Tensor,
        partials: cute.Tensor,
    ) -> None:
        self.kernel(x, kv, weight, saved, grad_out, grad_x, grad_kv, partials).launch(
            grid=(partials.shape[0], 1, 1), block=(_THREADS, 1, 1), stream=stream
        )
        add_rows(stream, [(partials, grad_weight.iterator.toint())], STREAMS * CHANNELS)

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        kv: cute.Tensor,
        weight: cute.Tensor,
        saved: cute.Tensor,
        grad_out: cute.Tensor,
        grad_x: cute.Tensor,
        grad_kv: cute.Tensor,
        partials: cute.Tensor,
    ) -> None:
        words = 4 * self.groups.shared_words(STREAMS)
        planes = _FLOATS * (2 if self.shared_weights else 1)
        shared = SmemAllocator().allocate(planes + words, 16).toint()
        reduction = shared + planes
        lane = Int32(cute.arch.thread_idx()[0])
        own = shared + lane * 16  # this thread's words of every plane
        block, blocks = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.grid_dim()[0])
        self.start(weight, own, lane)
        tokens = Int32(x.shape[0])
        for turn in cutlass.range((tokens - block + blocks - 1) // blocks, unroll=1):
            token = Int64(block + turn * blocks)
            offset = token * (STREAMS * _ROW) + Int64(lane) * 16
            of_kv = token * ((STREAMS + 1) * _ROW) + Int64(lane) * 16
            gs = [load_words(grad_out.iterator.toint() + offset + h * _ROW, 16, 1) for h in range(STREAMS)]
            value = load_words(kv.iterator.toint() + of_kv + STREAMS * _ROW, 16, 1)
            xs = [load_words(x.iterator.toint() + offset + h * _ROW, 16, 1) for h in range(STREAMS)]
            ks = [load_words(kv.iterator.toint() + of_kv + h * _ROW, 16, 1) for h in range(STREAMS)]
            dots = self.groups.sum([_dot(g, value) for g in gs], reduction, turn & 1)
            of_value = [Float32(0.0)] * VECTOR
            for h in cutlass.range_constexpr(STREAMS):
                row = saved.iterator.toint() + (token * STREAMS + h) * 16
                gate, dot, rx, rk = load_floats(row, 4, 1)
                slope = _slope(dots[h], gate, dot)
                coefficient = multiply(multiply(multiply(slope, rx), rk), _ROOT)
                of_x = divide(multiply(multiply(slope, dot), multiply(rx, rx)), CHANNELS)
                of_key = divide(multiply(multiply(slope, dot), multiply(rk, rk)), CHANNELS)
                shut, closed = slope == Float32(0.0), gate == Float32(0.0)
                weights = self.weights(weight, own, lane, h)
                g, xv, kvalue = (widen_pairs(given[h]) for given in (gs, xs, ks))
                scaled = [multiply(coefficient, w) for w in weights]
                new_x = [
                    subtract(add(a, multiply(s, k)), multiply(of_x, b))
                    for a, s, k, b in zip(g, scaled, kvalue, xv, strict=True)
                ]
                new_key = [
                    subtract(multiply(s, b), multiply(of_key, k)) for s, k, b in zip(scaled, kvalue, xv, strict=True)
                ]
                to_x = [cutlass.select_(shut, old, new) for old, new in zip(gs[h], narrow_pairs(new_x), strict=True)]
                to_key = [cutlass.select_(shut, Int32(0), new) for new in narrow_pairs(new_key)]
                store_words(grad_x.iterator.toint() + offset + h * _ROW, to_x, 16, 1)
                store_words(grad_kv.iterator.toint() + of_kv + h * _ROW, to_key, 16, 1)
                parts = [
                    cutlass.select_(shut, Float32(0.0), multiply(multiply(coefficient, b), k))
                    for b, k in zip(xv, kvalue, strict=True)
                ]
                _accumulate(own + 2 * h * _PLANE, parts)
                shares = [cutlass.select_(closed, Float32(0.0), multiply(gate, a)) for a in g]
                if cutlass.const_expr(h == 0):
                    of_value = shares
                else:
                    of_value = [add(total, share) for total, share in zip(of_value, shares, strict=True)]
            store_words(grad_kv.iterator.toint() + of_kv + STREAMS * _ROW, narrow_pairs(of_value), 16, 1)
        for h in cutlass.range_constexpr(STREAMS):
            at = partials.iterator.toint() + (Int64(block) * (STREAMS * CHANNELS) + h * CHANNELS) * 4 + Int64(lane) * 32
            for part in cutlass.range_constexpr(2):
                store_floats(at + part * 16, load_shared(own + (2 * h + part) * _PLANE, 4, Float32), 1)

    @cute.jit
    def start(self, weight: cute.Tensor, own: Int32, lane: Int32) -> None:
        """Clear this thread's sums, and fetch its weights where they are kept."""
        for plane in cutlass.range_constexpr(2 * STREAMS):
            store_shared(own + plane * _PLANE, [Float32(0.0)] * 4, 16)
        if cutlass.const_expr(self.shared_weights):
            for h in cutlass.range_constexpr(STREAMS):
                values = load_floats(weight.iterator.toint() + h * CHANNELS * 4 + Int64(lane) * 32, VECTOR, 1)
                store_shared(own + _FLOATS + 2 * h * _PLANE, values[:4], 16)
                store_shared(own + _FLOATS + (2 * h + 1) * _PLANE, values[4:], 16)

    def weights(self, weight: Any, own: Any, lane: Any, h: int) -> list[Float32]:
        if self.shared_weights:
            planes = own + _FLOATS + 2 * h * _PLANE
            return load_shared(planes, 4, Float32) + load_shared(planes + _PLANE, 4, Float32)
        return load_floats(weight.iterator.toint() + h * CHANNELS * 4 + Int64(lane) * 32, VECTOR, 1)


def _dot(g: list[Any], value: list[Any]) -> Float32:
    total = Float32(0.0)
    for a, b in zip(widen_pairs(g), widen_pairs(value), strict=True):
        total = add(total, multiply(a, b))
    return total


def _slope(dot_of_grad: Any, gate: Any, dot: Any) -> Float32:
    """The gradient of ``dot``; 0 where the gate is shut or the root is clamped."""
    size = as_float(as_bits(dot) & 0x7FFFFFFF)
    slope = multiply(multiply(dot_of_grad, gate), subtract(1.0, gate))
    slope = multiply(slope, divide(0.5, square_root(size)))
    slope = cutlass.select_(size < Float32(1e-6), Float32(0.0), slope)
    return cutlass.select_(gate == Float32(0.0), Float32(0.0), slope)


def _accumulate(own: Any, parts: list[Any]) -> None:
    for half in range(2):
        sums = load_shared(own + half * _PLANE, 4, Float32)
        store_shared(
            own + half * _PLANE, [add(a, b) for a, b in zip(sums, parts[4 * half : 4 * half + 4], strict=True)], 16
        )


def launcher(spec: GateSpec) -> Any:
    """The host function ``launch(stream, x, kv, weight, saved, grad_out, grad_x, grad_kv, grad_weight, partials)``."""
    return _Backward(spec)


def fake_arguments(spec: GateSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""
    streams, packed, weight = fake_tensor("bfloat16", 2), fake_tensor("bfloat16", 1, rank=2), ("float32", 1)
    return (
        streams,
        packed,
        fake_tensor(*weight, rank=2),
        fake_tensor("float32", 2),
        fake_tensor("bfloat16", 2),
        fake_tensor("bfloat16", 2),
        fake_tensor("bfloat16", 1, rank=2),
        fake_tensor(*weight, rank=2),
        fake_tensor(*weight, rank=2),
    )
