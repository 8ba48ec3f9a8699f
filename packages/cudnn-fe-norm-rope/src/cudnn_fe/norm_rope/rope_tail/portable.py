"""Tail RoPE: one vector of channels a thread and step, four steps in flight."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.ptx_base import assemble
from cudnn_fe.core.cute.rotary import rotate_pairs
from cudnn_fe.core.cute.row_vectors import VECTOR, load_words, store_words
from cudnn_fe.norm_rope.rope_tail.op import PAIRS, TailSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 256
_STEPS = 4


class _TailRope:
    def __init__(self, spec: TailSpec) -> None:
        self.spec, self.heads = spec, max(spec.heads, 1)
        self.per_row = spec.channels // VECTOR
        self.rows = max(_THREADS * _STEPS // self.per_row, 1)  # of a block
        self.steps = -(-self.rows * self.per_row // _THREADS)

    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, x: cute.Tensor, cosine: cute.Tensor, sine: cute.Tensor, out: cute.Tensor
    ) -> None:
        blocks = (Int64(x.shape[0]) * self.heads + self.rows - 1) // self.rows
        self.kernel(x, cosine, sine, out).launch(grid=(Int32(blocks), 1, 1), block=(_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, cosine: cute.Tensor, sine: cute.Tensor, out: cute.Tensor) -> None:
        thread = Int32(cute.arch.thread_idx()[0])
        first = Int64(cute.arch.block_idx()[0]) * self.rows
        rows = Int64(x.shape[0]) * self.heads
        first_token = first // self.heads
        first_head = Int32(first - first_token * self.heads)
        loaded, targets, tables, channels, valids = [], [], [], [], []
        for step in cutlass.range_constexpr(self.steps):
            item = thread + step * _THREADS
            inside = item // self.per_row
            vector = item - inside * self.per_row
            ahead = (first_head + inside) // self.heads
            token, head = first_token + ahead, first_head + inside - ahead * self.heads
            valid = Int32(first + inside < rows) * Int32(inside < self.rows)
            offset = token * Int64(x.stride[0]) + Int64(vector * VECTOR)
            if cutlass.const_expr(self.spec.heads):
                offset += Int64(head) * Int64(x.stride[1])
            loaded.append(load_words(x.iterator.toint() + offset * 2, self.spec.width, valid))
            channel = (vector - (self.per_row - 2 * PAIRS // VECTOR)) * VECTOR
            at = token * PAIRS + Int64(channel // 2)
            rotated = valid * Int32(channel >= 0)
            tables.append(
                [
                    load_words(table.iterator.toint() + at * 4, self.spec.table_width, rotated)
                    for table in (cosine, sine)
                ]
            )
            targets.append(out.iterator.toint() + ((first + inside) * self.per_row + vector) * 16)
            channels.append(channel)
            valids.append(valid)
        for step in cutlass.range_constexpr(self.steps):
            cosines, sines = [
                [value for word in words for value in assemble("mov.b32 $0, $1;", [Float32], [word])]
                for words in tables[step]
            ]
            turned = narrow_pairs(rotate_pairs(widen_pairs(loaded[step]), cosines, sines))
            words = [
                cutlass.select_(channels[step] >= 0, new, old) for new, old in zip(turned, loaded[step], strict=True)
            ]
            store_words(targets[step], words, 16, valids[step])


def launcher(spec: TailSpec) -> Any:
    """The host function ``launch(stream, x, cosine, sine, out)`` of a spec, to be compiled."""
    return _TailRope(spec)


def fake_arguments(spec: TailSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, cosine, sine, out)."""
    rank = 3 if spec.heads else 2
    return (
        fake_tensor("bfloat16", rank - 1, rank=rank, alignment=spec.width),
        fake_tensor("float32", 1, rank=2, alignment=spec.table_width),
        fake_tensor("float32", 1, rank=2, alignment=spec.table_width),
        fake_tensor("bfloat16", rank - 1, rank=rank, alignment=16),
    )
