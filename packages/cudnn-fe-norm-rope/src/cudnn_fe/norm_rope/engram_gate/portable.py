"""The engram gate: a block keeps one stream's weights in registers and goes from token to token."""

from __future__ import annotations

import math
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import add, divide, multiply, reciprocal_square_root, square_root
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_floats, load_vectors, store_floats, store_words
from cudnn_fe.core.cute.small_floats import as_bits, as_float
from cudnn_fe.norm_rope.engram_gate.op import CHANNELS, STREAMS, GateSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128
_PER_ROW = CHANNELS // VECTOR
_VECTORS = _PER_ROW // _THREADS
_BLOCKS = 3  # of a multiprocessor: what registers leave room for
_ROOT = 1.0 / math.sqrt(CHANNELS)
_LOG2_E = math.log2(math.e)


class _Forward:
    def __init__(self, spec: GateSpec) -> None:
        self.tokens_at_once = max(spec.multiprocessors * _BLOCKS // STREAMS, 1)
        self.groups = RowGroups(_THREADS, 1)

    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        x: cute.Tensor,
        kv: cute.Tensor,
        weight: cute.Tensor,
        mask: cute.Tensor,
        out: cute.Tensor,
        saved: cute.Tensor,
        eps: Float32,
    ) -> None:
        tokens = cutlass.min(Int32(x.shape[0]), Int32(self.tokens_at_once))
        self.kernel(x, kv, weight, mask, out, saved, eps).launch(
            grid=(tokens * STREAMS, 1, 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        kv: cute.Tensor,
        weight: cute.Tensor,
        mask: cute.Tensor,
        out: cute.Tensor,
        saved: cute.Tensor,
        eps: Float32,
    ) -> None:
        shared = SmemAllocator().allocate(4 * self.groups.shared_words(3), 16).toint()
        block, blocks = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.grid_dim()[0])
        stream, first, step = block % STREAMS, block // STREAMS, blocks // STREAMS
        lane = Int32(cute.arch.thread_idx()[0])
        weights = cute.make_rmem_tensor(VECTOR * _VECTORS, Float32)
        for index in cutlass.range_constexpr(_VECTORS):
            at = weight.iterator.toint() + Int64(stream * CHANNELS + (lane + index * _THREADS) * VECTOR) * 4
            for part, value in enumerate(load_floats(at, VECTOR, 1)):
                weights[index * VECTOR + part] = value
        rows, keys, value = (cute.make_rmem_tensor(4 * _VECTORS, Int32) for _ in range(3))
        for turn in cutlass.range((Int32(x.shape[0]) - first + step - 1) // step, unroll=1):
            token = Int64(first + turn * step)
            row = token * STREAMS + stream
            of_kv = kv.iterator.toint() + token * ((STREAMS + 1) * CHANNELS * 2)
            load_vectors(rows, x.iterator.toint() + row * (CHANNELS * 2), lane, _THREADS, _PER_ROW, 16)
            load_vectors(keys, of_kv + Int64(stream) * (CHANNELS * 2), lane, _THREADS, _PER_ROW, 16)
            load_vectors(value, of_kv + STREAMS * CHANNELS * 2, lane, _THREADS, _PER_ROW, 16)
            (active,) = load_global(mask.iterator.toint() + token, 1, 1)
            xx, kk, wd = self.groups.sum(_products(rows, keys, weights), shared, turn & 1)
            rx = reciprocal_square_root(add(multiply(xx, 1.0 / CHANNELS), eps))
            rk = reciprocal_square_root(add(multiply(kk, 1.0 / CHANNELS), eps))
            dot = multiply(multiply(wd, multiply(rx, rk)), _ROOT)
            gate = cutlass.select_(active != 0, _gate(dot), Float32(0.0))
            if lane == 0:
                store_floats(saved.iterator.toint() + row * 16, [gate, dot, rx, rk], 1)
            for index in cutlass.range_constexpr(_VECTORS):
                old = [rows[index * 4 + part] for part in range(4)]
                added = [
                    add(a, multiply(gate, v))
                    for a, v in zip(
                        widen_pairs(old), widen_pairs([value[index * 4 + part] for part in range(4)]), strict=True
                    )
                ]
                words = [
                    cutlass.select_(gate == Float32(0.0), was, new)
                    for was, new in zip(old, narrow_pairs(added), strict=True)
                ]
                at = out.iterator.toint() + row * (CHANNELS * 2) + Int64(lane + index * _THREADS) * 16
                store_words(at, words, 16, 1)


def _products(rows: Any, keys: Any, weights: Any) -> list[Float32]:
    """This thread's parts of sum x x, sum k k and sum (x w) k."""
    sums = [Float32(0.0)] * 3
    for index in range(_VECTORS):
        xs = widen_pairs([rows[index * 4 + part] for part in range(4)])
        ks = widen_pairs([keys[index * 4 + part] for part in range(4)])
        for part, (x, k) in enumerate(zip(xs, ks, strict=True)):
            weighted = multiply(x, weights[index * VECTOR + part])
            terms = multiply(x, x), multiply(k, k), multiply(weighted, k)
            sums = [add(total, term) for total, term in zip(sums, terms, strict=True)]
    return sums


def _gate(dot: Float32) -> Float32:
    """``sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))``; NaN for NaN."""
    root = square_root(cute.arch.fmax(as_float(as_bits(dot) & 0x7FFFFFFF), Float32(1e-6)))
    opposite = as_float(as_bits(root) | (~as_bits(dot) & -0x80000000))
    gate = divide(1.0, add(1.0, cute.math.exp2(multiply(opposite, _LOG2_E), fastmath=True)))
    return cutlass.select_(dot == dot, gate, dot)


def launcher(spec: GateSpec) -> Any:
    """The host function ``launch(stream, x, kv, weight, token_mask, out, saved, eps)``, to be compiled."""
    return _Forward(spec)


def fake_arguments(spec: GateSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, kv, weight, token_mask, out, saved, eps)."""
    return (
        fake_tensor("bfloat16", 2),
        fake_tensor("bfloat16", 1, rank=2),
        fake_tensor("float32", 1, rank=2),
        fake_tensor("bool", 0, rank=1, alignment=1),
        fake_tensor("bfloat16", 2),
        fake_tensor("float32", 2),
        Float32(1e-20),
    )
